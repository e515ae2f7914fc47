"""Threads that read requests leave the processor to those that make replies."""

from __future__ import annotations

import os
import sys
import threading

from mrs.devices.processor import cpu_threads

#: Ten steps are about a tenth of what others get.
_STEPS, _LOWEST = 10, 19
_MOST_THREADS = 4


def num_threads() -> int:
    """How many read requests at once: at most half of the processors, but two.

    Each of them keeps the interpreter from the threads that make replies for a while.
    """
    return min(max(cpu_threads() // 2, 2), _MOST_THREADS)


def step_back() -> None:
    """Give the current thread, and those that it starts, a lower priority than others here.

    A tokenizer that reads a long text would otherwise take a core from every step of the model,
    whose threads wait for each other. Only Linux has priorities of threads.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + _STEPS
        os.setpriority(os.PRIO_PROCESS, thread, min(niceness, _LOWEST))
