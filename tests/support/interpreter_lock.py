"""How long a piece of work keeps the interpreter from another thread that wants it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise

_SWITCH_S = 0.0005


def longest_hold_s(work: Callable[[], object], tries: int = 5) -> float:
    """The most processor time that `work` takes without letting another thread run.

    A thread that always wants the interpreter reads the working thread's clock whenever it gets it.
    That clock stands still while other programs have the processor. Of several tries the least
    counts: the reading thread may itself have to wait for a processor.
    """
    return min(_longest_hold_s(work) for _ in range(tries))


def _longest_hold_s(work: Callable[[], object]) -> float:
    clock, has_ended, is_ready = time.pthread_getcpuclockid(threading.get_ident()), False, False
    seen_s: list[float] = []

    def read() -> None:
        nonlocal is_ready
        is_ready = True
        while not has_ended:
            seen_s.append(time.clock_gettime(clock))
            time.sleep(0)  # the other thread's turn

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    reader = threading.Thread(target=read)
    try:
        reader.start()
        while not is_ready:
            time.sleep(0)
        start_s = time.clock_gettime(clock)
        work()
        end_s = time.clock_gettime(clock)
    finally:
        has_ended = True
        reader.join()
        sys.setswitchinterval(interval_s)
    within = [start_s, *(each for each in seen_s if start_s < each < end_s), end_s]
    return max(after - before for before, after in pairwise(within))
