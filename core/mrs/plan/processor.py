"""What the planner needs to know of the processor, beside `mrs.cpu`."""

from __future__ import annotations

import os


def cpu_threads() -> int:
    """Threads that torch takes by default."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
