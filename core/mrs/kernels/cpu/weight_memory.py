"""Memory for weights on huge pages, and settings of the C library's heap."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_HUGE_PAGE_BYTES = 2 << 20
_LINE_BYTES = 64

#: glibc's codes for options of its heap: how much free memory at the heap's end it keeps before it
#: returns it to the system; the size from which on allocations are mapped one by one (32 MiB at
#: most); the number of heaps that threads are spread over.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def use_one_heap() -> None:
    """Let threads that start from now on allocate from the main heap, if the C library is glibc.

    Only the main heap keeps freed memory. The heaps of other threads shrink when a large block is
    freed, so that a thread would have the pages of its activations cleared again at every step.
    """
    _set_heap((_ARENA_MAX, 1))


def keep_freed_memory() -> None:
    """Let the heap keep freed blocks of up to 32 MiB, if the C library is glibc.

    A prompt allocates and frees its activations layer by layer. If each block were returned to the
    system, its pages would have to be cleared every time: an eighth of a prompt's time, as
    measured. The heap keeps no more than was in use at once, which the plan counts.
    """
    _set_heap((_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 128 << 20))


@contextlib.contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Return every large block to the system when it is freed, if the C library is glibc.

    Otherwise freed blocks of many sizes, between small ones that stay allocated, fragment the
    heap: loading and quantizing a model would need up to twice the model's memory.
    """
    _set_heap((_MMAP_THRESHOLD, 256 << 10), (_TRIM_THRESHOLD, 256 << 10))
    try:
        yield
    finally:
        trim_heap()


def trim_heap() -> None:
    """Return free pages of the heap to the system, if the C library is glibc."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _set_heap(*options: tuple[int, int]) -> None:
    """Set glibc's heap options, pairs of a code and a value; no effect on other C libraries."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        for option, value in options:
            set_option(option, value)


class WeightArena:
    """One allocation on huge pages for all weights on the CPU.

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


def _private_memory(size_bytes: int) -> mmap.mmap:
    """Memory private to this process: shared memory, Python's default, has no huge pages."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _aligned(size_bytes: int) -> int:
    """Rounded up to whole cache lines, so that the next tensor starts at a line."""
    return -(-size_bytes // _LINE_BYTES) * _LINE_BYTES
