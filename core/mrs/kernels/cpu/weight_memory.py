"""Memory for weights, on huge pages where the system offers them, and for activations."""

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

#: glibc's numbers of what can be set: how much of the heap's end may lie free before it goes back
#: to the system, from which size on blocks are mapped one by one (32 MiB is the most), and how many
#: heaps there are for different threads.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def use_one_heap() -> None:
    """Let all threads that start from now on allocate from the main heap, if this is glibc.

    Only that heap keeps what is freed: those of other threads shrink with each large block, so that
    a thread would clear the pages of its activations anew at every step.
    """
    _set_heap((_ARENA_MAX, 1))


def keep_freed_memory() -> None:
    """Let the heap keep what is freed in blocks of up to 32 MiB, where the C library is glibc.

    A prompt takes and frees its activations layer by layer. Given back to the system each time,
    their pages would have to be cleared anew: an eighth of a prompt's time, as measured. What is
    kept is no more than what was in use at once, as planned.
    """
    _set_heap((_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 128 << 20))


@contextlib.contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Let every large block go back to the system when it is freed, where the C library is glibc.

    Otherwise blocks of many sizes, with small ones that stay between them, leave the heap half
    empty: loading and quantizing a model would take up to twice the model's memory.
    """
    _set_heap((_MMAP_THRESHOLD, 256 << 10), (_TRIM_THRESHOLD, 256 << 10))
    try:
        yield
    finally:
        if sys.platform.startswith("linux"):
            with contextlib.suppress(AttributeError):
                ctypes.CDLL(None).malloc_trim(0)


def _set_heap(*options: tuple[int, int]) -> None:
    """Pairs of glibc's number of an option and its value; other C libraries know none."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        for option, value in options:
            set_option(option, value)


class WeightArena:
    """Memory for weights that are read again and again, in one stretch on huge pages.

    Huge pages spare the processor most of its address translation: reading is about a tenth
    faster. Tensors share them, so that none is rounded up to whole pages. The memory goes back to
    the system with the last tensor.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        """Memory for tensors of `sizes` bytes, which takes none before it is written."""
        self._used = 0
        self._size = sum(map(_aligned, sizes))
        if not self._size:
            return
        self._memory = _private_memory(self._size + _HUGE_PAGE_BYTES)
        address = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        self._start = -address % _HUGE_PAGE_BYTES
        # The last, partly used page stays an ordinary one.
        whole = self._size // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if whole and hasattr(mmap, "MADV_HUGEPAGE"):
            # A kernel without huge pages refuses; ordinary ones serve as well.
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_HUGEPAGE, self._start, whole)

    def take(self, size_bytes: int) -> Tensor:
        """The next tensor: uint8 (size_bytes,), not yet written. ValueError beyond the sizes."""
        if self._used + size_bytes > self._size:
            raise ValueError(f"{size_bytes} bytes exceed an arena of {self._size}")
        if not size_bytes:
            return torch.empty(0, dtype=torch.uint8)
        offset = self._start + self._used
        self._used += _aligned(size_bytes)
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=size_bytes, offset=offset)


def _private_memory(size_bytes: int) -> mmap.mmap:
    """Memory of this process alone; shared memory, which is Python's default, has no huge pages."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _aligned(size_bytes: int) -> int:
    """Rounded up, so that the next tensor starts at a line of the processor's caches."""
    return -(-size_bytes // _LINE_BYTES) * _LINE_BYTES
