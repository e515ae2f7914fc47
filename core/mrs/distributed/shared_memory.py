"""The memory that processes of one machine share: a file without a name (no torch)."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from mrs.errors import DoesNotFit
from mrs.units import human_bytes

#: Values of a process that are exchanged at once.
TILE_VALUES = 1 << 18
_SHARED_MEMORY = Path("/dev/shm")


def memory_bytes(ranks: int) -> int:
    """The bytes that `ranks` processes share."""
    return 2 * ranks * TILE_VALUES * 4


class SharedFile:
    """A file for the memory of a group. Its name goes as soon as all processes have opened it."""

    def __init__(self, ranks: int) -> None:
        """Raises DoesNotFit."""
        folder = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        descriptor, name = tempfile.mkstemp(prefix="mrs-", dir=folder)
        self.path = Path(name)
        try:
            _reserve(descriptor, memory_bytes(ranks))
        except OSError as error:
            self.remove()
            raise DoesNotFit(
                f"there is no room for {human_bytes(memory_bytes(ranks))} of shared memory",
                missing_bytes=memory_bytes(ranks),
                where=f"{self.path.parent}, {error.strerror}",
            ) from error
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Allocate now: a write to a full file system would end the process later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.truncate(descriptor, size_bytes)
