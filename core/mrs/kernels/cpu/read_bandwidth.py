"""Measure the read bandwidth of this machine's memory."""

from __future__ import annotations

import time

import torch

from mrs.kernels.cpu.library import native_library
from mrs.kernels.huge_pages import HugePageArena


def read_bandwidth(size_bytes: int = 256 << 20, seconds: float = 0.3) -> float:
    """Bytes per second of sequential reads with torch's number of threads, one after another.

    `size_bytes` should be several times the last-level cache. No matrix-vector product can read
    its weights faster for long. The reads go on for `seconds`, as a reply does, and so meet the
    same interruptions: the best of a few would be some percent faster than any program.
    """
    memory = HugePageArena([size_bytes]).allocate(size_bytes)
    memory.fill_(1)  # the system allocates pages when they are first written
    library = native_library()

    def read() -> None:
        if library is None:
            memory.view(torch.int64).sum()
        else:
            library.functions.mrs_read(
                library.path_address, memory.data_ptr(), size_bytes, torch.get_num_threads()
            )

    read()  # starts the threads
    start, rounds = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds or not rounds:
        read()
        rounds += 1
    return rounds * size_bytes / passed
