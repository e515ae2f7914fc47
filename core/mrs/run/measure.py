"""How many bytes a piece of work takes at its worst moment, beside what was there before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Largest sum of tensors that `work` had allocated at once on `device`.

    On CUDA the allocator counts; on a CPU the profiler records every allocation that goes through
    torch, which leaves out what native kernels take for themselves. Other devices cannot be
    measured: 0.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        work()
        return 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    held = largest = 0
    for _, size in sorted(_allocations(profiler)):
        held += size
        largest = max(largest, held)
    return largest


def _allocations(profiler: profile) -> list[tuple[int, int]]:
    """(time, bytes) of every allocation on the CPU; bytes are negative where memory is given back."""
    results: Any = profiler.profiler and profiler.profiler.kineto_results
    found = []
    waiting = list(results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation:
            allocation = event.typed[1]
            if allocation.device.type == "cpu":
                found.append((event.start_time_ns, allocation.alloc_size))
    return found
