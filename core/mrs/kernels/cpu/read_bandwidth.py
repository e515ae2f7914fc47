"""How fast this machine reads memory."""

from __future__ import annotations

import time

import torch

from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.weight_memory import WeightArena


def read_bandwidth(size_bytes: int = 256 << 20, rounds: int = 5) -> float:
    """Bytes per second of a plain read by as many threads as torch uses; the best of `rounds`.

    `size_bytes` should be several times the last-level cache. Matrix-vector products over packed
    weights can at best read at this rate.
    """
    memory = WeightArena([size_bytes]).take(size_bytes)
    memory.fill_(1)  # pages exist only once they are written
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
