"""Files that are read past the system's page cache, in pieces that several threads read at once."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path

#: Offsets, sizes and addresses are multiples of this: no common device has larger blocks.
BLOCK_BYTES = 4096
#: Pieces of this size, so many at a time, keep an SSD busy: 2.0 to 2.5 GB/s were measured on a
#: virtual one, where two at a time were read at 1.7.
PIECE_BYTES = 4 << 20
READERS = 4

_PAST_CACHE = getattr(os, "O_DIRECT", 0)
#: Whether this system reads at an offset into given memory, which threads share a file for.
CAN_READ = hasattr(os, "preadv")


class DirectFile:
    """A file of whole blocks, open for reading as long as this object lives.

    Where the file system cannot read past the page cache, it is read through it.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        try:
            self._file = _opened(path, _PAST_CACHE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._file = _opened(path, 0)

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill `target`, bytes at a block's address, from `offset` on. Raises OSError."""
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._file.fileno(), [target[done:]], offset + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not _is_past_cache(self._file):
                    raise
                self._file = _opened(self.path, 0)  # it opens such files, and does not read them
                continue
            if not count:
                raise OSError(errno.EIO, "the file has become shorter")
            done += count


class DirectReader:
    """Threads that read files piece by piece, in the order in which reads are begun."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="mrs-disk")

    def begin(self, file: DirectFile, target: memoryview, offset: int = 0) -> list[Future[None]]:
        """Begin to fill `target`; one result for each of its `pieces`, which may raise OSError."""
        return [
            self._threads.submit(file.read_into, target[piece], offset + piece.start)
            for piece in pieces(len(target))
        ]


def pieces(size_bytes: int) -> Iterator[slice]:
    """The pieces in which so many bytes are read."""
    for start in range(0, size_bytes, PIECE_BYTES):
        yield slice(start, min(start + PIECE_BYTES, size_bytes))


def checksums(content: memoryview) -> list[int]:
    """The CRC-32 of each piece."""
    return [zlib.crc32(content[piece]) for piece in pieces(len(content))]


def whole_blocks(size_bytes: int) -> int:
    """A size rounded up to whole blocks."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _opened(path: Path, flags: int) -> FileIO:
    return FileIO(path, opener=lambda name, usual: os.open(name, usual | flags))


def _is_past_cache(file: FileIO) -> bool:
    import fcntl

    return bool(_PAST_CACHE and fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & _PAST_CACHE)
