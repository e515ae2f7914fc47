"""What the planner needs to know of the processor."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Literal

from mrs.plan.host_memory import PROC

Bf16Units = Literal["none", "vector", "matrix"]


def cpu_threads() -> int:
    """Threads that torch takes by default."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def bf16_units(proc: Path = PROC) -> Bf16Units:
    """What the processor multiplies bf16 with: tiles of matrices (AMX), vectors, or nothing."""
    try:
        with (proc / "cpuinfo").open(errors="replace") as lines:
            flags = next((line.split() for line in lines if line.startswith("flags")), [])
    except OSError:
        return "none"
    if "amx_tile" in flags:
        return "matrix"
    return "vector" if "avx512_bf16" in flags else "none"
