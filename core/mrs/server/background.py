"""Threads that read requests leave the processor to those that make replies."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

from mrs.devices.processor import cpu_threads

#: A request of more bytes takes long: a text of as many becomes tokens in some milliseconds.
SHORT_BYTES = 2**13
_LOWEST_PRIORITY = 19
_MOST_THREADS = 4


def num_threads() -> int:
    """How many read requests at once: at most half of the processors, but two.

    Each of them keeps the interpreter from the threads that make replies for a while.
    """
    return min(max(cpu_threads() // 2, 2), _MOST_THREADS)


def step_back() -> None:
    """Give the current thread, and those that it starts, the lowest priority.

    A tokenizer that reads a long text would otherwise take a core from every step of the model,
    whose threads wait for each other. As a batch task it does not take over from a thread that runs
    when it wakes up, either. Only Linux has priorities of threads.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, _LOWEST_PRIORITY)
        with suppress(OSError):  # a sandbox may not allow it
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
