"""The memory that processes of one machine share (no torch)."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from mrs.errors import DoesNotFit
from mrs.units import human_bytes

#: Values of a process that are exchanged at once.
TILE_VALUES = 1 << 18


def memory_bytes(ranks: int) -> int:
    """The bytes that `ranks` processes share."""
    return 2 * ranks * TILE_VALUES * 4


class SharedFile:
    """A file for the memory of a group, which all processes open before it is removed.

    On Linux it has no name, so that nothing is left behind when this process is killed, and it is
    sealed: a process that made it shorter would end the others, which have it in their memory.
    """

    def __init__(self, size_bytes: int) -> None:
        """Raises DoesNotFit."""
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("mrs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self.path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        else:
            self._descriptor, name = tempfile.mkstemp(prefix="mrs-")
            self.path = Path(name)
        try:
            reserve(self._descriptor, size_bytes)
            if size_bytes and hasattr(os, "memfd_create"):
                _seal(self._descriptor)
        except OSError as error:
            self.remove()
            raise DoesNotFit(
                f"there is no room for {human_bytes(size_bytes)} of shared memory",
                missing_bytes=size_bytes,
                where=error.strerror or "",
            ) from error

    def remove(self) -> None:
        os.close(self._descriptor)
        if not hasattr(os, "memfd_create"):
            with suppress(OSError):
                self.path.unlink()


def _seal(descriptor: int) -> None:
    import fcntl

    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def reserve(descriptor: int, size_bytes: int) -> None:
    """Allocate now: a write to a full file system would end the process later."""
    if not size_bytes:
        return
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.truncate(descriptor, size_bytes)
