"""Threads that read requests leave the processor to those that make replies."""

from __future__ import annotations

import os
import sys
import threading

#: Five steps are about a third of what others get. More would let those wait that need the
#: interpreter's lock, while a thread that has it waits for a processor.
_STEPS, _LOWEST = 5, 19


def step_back() -> None:
    """Give the current thread, and those that it starts, a lower priority than others here.

    A tokenizer that reads a long text would otherwise take a core from every step of the model,
    whose threads wait for each other. Only Linux has priorities of threads.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + _STEPS
        os.setpriority(os.PRIO_PROCESS, thread, min(niceness, _LOWEST))
