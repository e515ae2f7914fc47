"""Memory that processes of one user have planned and not taken yet, so that each knows of it.

A process that loads a model has less memory than its plan says for a while, and its prefix cache
fills later. Without its word, every further process would plan with the same free memory. Each
writes how much it will have at most into a file that has its id; what it has already is in the
figures of the system.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from mrs.process.files import read_at_most, replace_file

#: Start times of one process, as the system rounds them, differ by less.
SAME_TIME_S = 1.0
#: A larger file is not one of these.
MAX_FILE_BYTES = 4096
#: No process is believed to need more.
MOST_BYTES = 1 << 50


class Others(NamedTuple):
    """Bytes that other processes will still take, and how many these are."""

    size_bytes: int
    processes: int


class Promise:
    """This process will have so many bytes of the host's memory, until it is withdrawn or gone."""

    _all: ClassVar[dict[object, int]] = {}
    _lock = threading.RLock()

    def __init__(self, size_bytes: int) -> None:
        key = object()
        self._withdrawn = weakref.finalize(self, _withdraw, self._all, self._lock, key)
        self._withdrawn.atexit = False
        with self._lock:
            self._all[key] = size_bytes
            _write(sum(self._all.values()))

    def withdraw(self) -> None:
        """The memory is free, or will not be needed. Later calls have no effect."""
        self._withdrawn()


def _withdraw(promises: dict[object, int], lock: threading.RLock, key: object) -> None:
    with lock:
        del promises[key]
        _write(sum(promises.values()))


def promised_to_others() -> Others:
    """What other processes that still run have promised and do not have yet."""
    missing = [each for each in _missing_bytes() if each]
    return Others(sum(missing), len(missing))


def _missing_bytes() -> Iterator[int]:
    with suppress(OSError):
        for path in _folder().glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) != os.getpid():
                yield _missing_of(int(path.stem), path)


def _missing_of(pid: int, path: Path) -> int:
    """What a process lacks of its promise; 0 for one that has ended, whose file is deleted."""
    import psutil

    try:
        entry: Any = json.loads(read_at_most(path, MAX_FILE_BYTES))
        started, size_bytes = float(entry["started"]), int(entry["bytes"])
        process = psutil.Process(pid)
        is_same = abs(process.create_time() - started) < SAME_TIME_S
        if is_same and 0 < size_bytes <= MOST_BYTES:
            return max(0, size_bytes - int(process.memory_info().rss))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, psutil.Error):
        pass
    with suppress(OSError):
        path.unlink()
    return 0


def _write(size_bytes: int) -> None:
    """Replaces the file of this process; a folder that cannot be written is not an error."""
    import psutil

    with suppress(OSError):
        path = _folder() / f"{os.getpid()}.json"
        if not size_bytes:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"started": psutil.Process().create_time(), "bytes": size_bytes}
        replace_file(path, [json.dumps(entry).encode()])


def _folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("mrs") / "running"
