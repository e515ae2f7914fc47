"""Memory on huge pages, for weights and the KV cache."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_HUGE_PAGE_BYTES = 2 << 20
_LINE_BYTES = 64
#: Whether torch's allocator allocates as much as each arena does, as long as it lives.
_is_counted = False


class _Memory(mmap.mmap):
    counted: Tensor | None = None


class HugePageArena:
    """One allocation on huge pages for several tensors on the CPU.

    Huge pages spare the processor most of its address translation: reading is about a tenth
    faster. Tensors share pages, so that none is rounded up to whole pages. The memory is freed
    with the last tensor.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        """Reserve memory for tensors of `sizes` bytes; pages are allocated when written."""
        self._used = 0
        self._size = sum(map(_aligned, sizes))
        if not self._size:
            return
        self._memory = _private_memory(self._size + _HUGE_PAGE_BYTES)
        address = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        self._start = -address % _HUGE_PAGE_BYTES
        if _is_counted:
            self._memory.counted = torch.empty(self._size, dtype=torch.uint8)
        # The last page, which is only partly used, stays an ordinary page.
        whole = self._size // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if whole and hasattr(mmap, "MADV_HUGEPAGE"):
            # Operating systems without huge pages refuse; ordinary pages work as well.
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_HUGEPAGE, self._start, whole)

    def allocate(self, size_bytes: int) -> Tensor:
        """The next tensor: uint8 (size_bytes,), uninitialized. ValueError if the arena is full."""
        if self._used + size_bytes > self._size:
            raise ValueError(
                f"{size_bytes} bytes exceed the rest of an arena of {self._size} bytes"
            )
        if not size_bytes:
            return torch.empty(0, dtype=torch.uint8)
        offset = self._start + self._used
        self._used += _aligned(size_bytes)
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=size_bytes, offset=offset)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next tensor, of this shape and dtype; otherwise as `allocate`."""
        return self.allocate(math.prod(shape) * dtype.itemsize).view(dtype).view(*shape)


@contextlib.contextmanager
def arenas_counted() -> Iterator[None]:
    """Let torch's profiler see the memory of new arenas: it records torch's allocations alone."""
    global _is_counted
    before, _is_counted = _is_counted, True
    try:
        yield
    finally:
        _is_counted = before


def _private_memory(size_bytes: int) -> _Memory:
    """Memory private to this process: shared memory, Python's default, has no huge pages."""
    if sys.platform == "win32":
        return _Memory(-1, size_bytes)
    return _Memory(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _aligned(size_bytes: int) -> int:
    """Rounded up to whole cache lines, so that the next tensor starts at a line."""
    return -(-size_bytes // _LINE_BYTES) * _LINE_BYTES
