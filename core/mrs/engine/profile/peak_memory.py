"""The peak of the memory that a piece of work allocates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from mrs.kernels.cpu.library import native_library
from mrs.kernels.huge_pages import arenas_counted

#: The native functions that allocate memory.
NATIVE_CALLS = ("mrs_run", "mrs_matmul", "mrs_attend")


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The most bytes that `work` had allocated at once on `device`, apart from earlier ones.

    On CUDA the allocator counts; on a CPU the profiler records every allocation that goes through
    torch, and the native library counts its own. Other devices cannot be measured: 0.
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
    cpu_profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with native_scratch_counted(), arenas_counted(), cpu_profile as profiler:
        work()
    blocks: dict[int, int] = {}
    current = largest = 0
    for _, address, size in sorted(_allocations(profiler)):
        # Blocks from before are released too; they are not counted.
        current += size if size > 0 else -blocks.pop(address, 0)
        if size > 0:
            blocks[address] = size
        largest = max(largest, current)
    return largest


@contextmanager
def native_scratch_counted() -> Iterator[None]:
    """Let torch allocate as much as each native call did, right after the call.

    The inputs and results of the call still exist then, so that torch's peak includes them.
    """
    library = native_library()
    if library is None:
        yield
        return
    functions = library.functions
    plain = {name: getattr(functions, name) for name in NATIVE_CALLS}

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_and_allocate(*arguments: Any) -> Any:
            result = call(*arguments)
            torch.empty(functions.mrs_scratch_peak(), dtype=torch.uint8)
            return result

        return call_and_allocate

    functions.mrs_scratch_peak()
    for name, call in plain.items():
        setattr(functions, name, wrapped(call))
    try:
        yield
    finally:
        for name, call in plain.items():
            setattr(functions, name, call)


def _allocations(profiler: profile) -> list[tuple[int, int, int]]:
    """Time, address and bytes of all allocations on the CPU; bytes are negative for a release."""
    results: Any = profiler.profiler and profiler.profiler.kineto_results
    found = []
    waiting = list(results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation:
            allocation = event.typed[1]
            if allocation.device.type == "cpu":
                found.append((event.start_time_ns, allocation.ptr, allocation.alloc_size))
    return found
