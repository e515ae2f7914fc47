"""What the planner needs to know of the processor."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from mrs.plan.host_memory import PROC


def cpu_threads() -> int:
    """Threads that torch takes by default."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def has_matrix_units(proc: Path = PROC) -> bool:
    """Whether the processor multiplies tiles of bf16 (AMX)."""
    try:
        with (proc / "cpuinfo").open(errors="replace") as lines:
            return any("amx_tile" in line for line in lines if line.startswith("flags"))
    except OSError:
        return False
