"""Memory for weights, on huge pages where the system offers them."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

_HUGE_PAGE_BYTES = 2 << 20


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
