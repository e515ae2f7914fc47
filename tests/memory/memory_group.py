"""A memory control group of Linux for one child process, where this process may make one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """The group's `cgroup.procs`, for a child to write its number into; None where not allowed."""
    is_v1 = (_ROOT / "memory").is_dir()
    folder = (_ROOT / "memory" if is_v1 else _ROOT) / f"mrs-test-{os.getpid()}"
    try:
        folder.mkdir()
        name = "memory.limit_in_bytes" if is_v1 else "memory.max"
        (folder / name).write_text(str(limit_bytes))
    except OSError:
        if folder.is_dir():
            folder.rmdir()
        yield None
        return
    try:
        yield folder / "cgroup.procs"
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Once the last process has left: children may end a moment after their parent."""
    for _ in range(50):
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.1)
        else:
            return
    folder.rmdir()


def kills_in(group: Path) -> int:
    """Processes of a group (its `cgroup.procs`) that were killed since it had no memory left."""
    for name in ("memory.oom_control", "memory.events"):
        if (file := group.with_name(name)).exists():
            values = dict(line.split() for line in file.read_text().splitlines())
            return int(values.get("oom_kill", 0))
    return 0
