"""The memory that processes of one machine share (no torch)."""

from __future__ import annotations

import os
import re
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


_MEMFD, _PREFIX = "mrs", "mrs-"


def is_shared_memory(path: str) -> bool:
    """Whether a path from another process is that of a `SharedFile`, and of nothing else."""
    if not hasattr(os, "memfd_create"):
        file = Path(path)
        return file.parent == Path(tempfile.gettempdir()) and file.name.startswith(_PREFIX)
    if not re.fullmatch(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}", path):
        return False
    try:
        return os.readlink(path) == f"/memfd:{_MEMFD} (deleted)"  # noqa: PTH115
    except OSError:
        return False


class SharedFile:
    """A file for the memory of a group, which all processes open before it is removed.

    On Linux it has no name, so that nothing is left behind when this process is killed, and it is
    sealed: a process that made it shorter would end the others, which have it in their memory.
    """

    def __init__(self, size_bytes: int) -> None:
        """Raises DoesNotFit."""
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create(_MEMFD, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self.path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        else:
            self._descriptor, name = tempfile.mkstemp(prefix=_PREFIX)
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
