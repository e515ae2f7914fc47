"""A file of figures that grows by a window at a time, and goes on after an interruption."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from mrs.devices.measurements import cache_file
from mrs.errors import NotReadable, UsageError
from mrs.process.files import PRIVATE, hold

FOLDER_NAME = "evaluations"
#: What nobody has gone on with for so long is deleted by the next evaluation.
KEPT_S = 7 * 86400
_SUM_BYTES = 4
Values = npt.NDArray[np.float32] | npt.NDArray[np.float64]


class WindowFile:
    """One array of the same shape and type for each window, each with a checksum.

    What is in the file is checked when it is opened: a window that is cut or damaged, and all
    after it, are dropped and computed again.
    """

    def __init__(self, file: BinaryIO, shape: tuple[int, ...], dtype: str) -> None:
        self._file, self._shape, self._dtype = file, shape, np.dtype(dtype)
        self._size = int(np.prod(shape)) * self._dtype.itemsize
        self.count = self._count_valid()
        file.truncate(self.count * self._stride)

    @property
    def _stride(self) -> int:
        return self._size + _SUM_BYTES

    def _count_valid(self) -> int:
        count = 0
        while self._payload(count) is not None:
            count += 1
        return count

    def _payload(self, index: int) -> bytes | None:
        self._file.seek(index * self._stride)
        block = self._file.read(self._stride)
        payload, checksum = block[: self._size], block[self._size :]
        is_whole = len(block) == self._stride and checksum == _checksum(payload)
        return payload if is_whole else None

    def append(self, values: Values) -> None:
        """Add the next window. Raises OSError."""
        payload = np.ascontiguousarray(values, self._dtype).tobytes()
        assert len(payload) == self._size
        self._file.seek(self.count * self._stride)
        self._file.write(payload + _checksum(payload))
        self._file.flush()
        self.count += 1

    def __getitem__(self, index: int) -> Values:
        payload = self._payload(index)
        if payload is None:
            raise NotReadable("a file of the evaluation has changed", hint="start it again")
        return np.frombuffer(payload, self._dtype).reshape(self._shape)


def _checksum(payload: bytes) -> bytes:
    return zlib.crc32(payload).to_bytes(_SUM_BYTES, "little")


def size_bytes(windows: int, shape: tuple[int, ...], dtype: str) -> int:
    """How large the file of so many windows is."""
    return windows * (int(np.prod(shape)) * np.dtype(dtype).itemsize + _SUM_BYTES)


def folder() -> Path:
    """Where unfinished evaluations are."""
    return cache_file(FOLDER_NAME)


def delete_old() -> None:
    """Delete the files of evaluations that nobody has gone on with."""
    with suppress(OSError):
        for path in folder().iterdir():
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink(missing_ok=True)


@contextmanager
def window_file(name: str, shape: tuple[int, ...], dtype: str) -> Iterator[WindowFile]:
    """The file of this name, for this process alone. Raises UsageError and OSError."""
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder() / name, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), PRIVATE)
    with os.fdopen(handle, "r+b") as file:
        hint = "wait until it has ended"
        hold(file, UsageError("another process runs this evaluation", hint=hint))
        yield WindowFile(file, shape, dtype)


def delete(name: str) -> None:
    with suppress(OSError):
        (folder() / name).unlink()
