"""Measure the read bandwidth of this machine's memory."""

from __future__ import annotations

import time

import torch

from mrs.kernels.cpu.library import native_library
from mrs.kernels.huge_pages import HugePageArena


def read_bandwidth(size_bytes: int = 256 << 20, rounds: int = 5) -> float:
    """Bytes per second of a sequential read with torch's number of threads; the best of `rounds`.

    `size_bytes` should be several times the last-level cache. No matrix-vector product can read
    its weights faster.
    """
    memory = HugePageArena([size_bytes]).allocate(size_bytes)
    memory.fill_(1)  # the system allocates pages when they are first written
    library = native_library()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        if library is None:
            memory.view(torch.int64).sum()
        else:
            library.functions.mrs_read(
                library.path_address, memory.data_ptr(), size_bytes, torch.get_num_threads()
            )
        best = min(best, time.perf_counter() - start)
    return size_bytes / best
