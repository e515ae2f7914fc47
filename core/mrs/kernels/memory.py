"""Memory for weights, on huge pages where the system offers them, and for activations."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys

import torch
from torch import Tensor

_HUGE_PAGE_BYTES = 2 << 20

#: glibc's numbers of what can be set: how much of the heap's end may lie free before it goes back
#: to the system, from which size on blocks are mapped one by one (32 MiB is the most), and how many
#: heaps there are for different threads.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def use_one_heap() -> None:
    """Let all threads that start from now on allocate from the main heap, if this is glibc.

    Only that heap keeps what is freed: those of other threads shrink with each large block, so that
    a thread would clear the pages of its activations anew at every step.
    """
    _set_malloc_option(_ARENA_MAX, 1)


def keep_freed_memory() -> None:
    """Let the heap keep what is freed in blocks of up to 32 MiB, where the C library is glibc.

    A prompt takes and frees its activations layer by layer. Given back to the system each time,
    their pages would have to be cleared anew: an eighth of a prompt's time, as measured. What is
    kept is no more than what was in use at once, as planned.
    """
    _set_malloc_option(_MMAP_THRESHOLD, 32 << 20)
    _set_malloc_option(_TRIM_THRESHOLD, 128 << 20)


def _set_malloc_option(option: int, value: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).mallopt(option, value)


def allocate_weights(size_bytes: int) -> Tensor:
    """A uint8 tensor, not yet written, for weights that are read again and again.

    Huge pages spare the processor most of its address translation: reading is about a tenth
    faster. The memory is returned to the system with the tensor.
    """
    if size_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size_bytes, dtype=torch.uint8)
    pages = -(-size_bytes // _HUGE_PAGE_BYTES)
    memory = mmap.mmap(
        -1, (pages + 1) * _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    start = -address % _HUGE_PAGE_BYTES
    # A kernel without huge pages refuses; ordinary ones serve as well.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE, start, pages * _HUGE_PAGE_BYTES)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size_bytes, offset=start)
