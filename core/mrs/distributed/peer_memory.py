"""The memory that another process of a group has made, whose path is all that it tells."""

from __future__ import annotations

import os
from pathlib import Path

from mrs.distributed.protocol.channel import Damaged
from mrs.distributed.shared_memory import is_shared_memory, reserve


def require_path(path: Path) -> None:
    """Raises Damaged for a path that no `SharedFile` has."""
    if not is_shared_memory(str(path)):
        raise Damaged("the memory of a group has another path")


def opened(path: Path, size_bytes: int) -> int:
    """A descriptor of the file that another process has made for so many bytes.

    Raises OSError, and Damaged for any other file: a peer may name one that is somebody else's, or
    that ends the reader when it is made shorter.
    """
    require_path(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        if os.fstat(descriptor).st_size != size_bytes:
            raise Damaged("the memory of a group has another size")
        if hasattr(os, "memfd_create"):
            _require_sealed(descriptor)
        reserve(descriptor, size_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_sealed(descriptor: int) -> None:
    """Raises Damaged for what is no memory that keeps its size."""
    import fcntl

    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise Damaged("the memory of a group can be made shorter")
