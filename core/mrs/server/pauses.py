"""Keeps pauses short in which one thread of a server holds all others up."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: How long a thread that computes in Python keeps the interpreter from one that waits for it. A
#: reply waits at each of its steps; by default it would be 5 ms each time.
_SWITCH_S = 0.0001
#: A collection waits until no reply is made, but no longer than this.
_LATEST_S = 30.0
#: What was left out of collections is looked at again after this time, once the server has rested
#: for so many intervals: that takes a tenth of a second.
_ALL_S, _RESTED = 600.0, 10
_NEVER = 2**30


@contextmanager
def short_pauses() -> Iterator[None]:
    """Within this, Python collects garbage among young objects only: `collect` does the rest."""
    switch_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*thresholds[:2], _NEVER)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(switch_s)


def collect_all() -> None:
    """Collect all garbage; later collections leave out what there is now: models and libraries."""
    gc.unfreeze()
    collect_new()


def collect_new() -> None:
    """Collect the garbage among what was made since the last time: so it takes a moment only."""
    gc.collect()
    gc.freeze()


async def collect(
    is_busy: Callable[[], bool],
    num_models: Callable[[], int],
    interval_s: float = 1.0,
    latest_s: float = _LATEST_S,
) -> None:
    """Collect the garbage of requests while the server rests, until this is cancelled.

    What is no garbage is left out from then on, until another number of models is loaded or the
    server rests some minutes later.
    """
    last_s = all_s = time.monotonic()
    num_kept = rested = 0
    while True:
        await asyncio.sleep(interval_s)
        rested = 0 if is_busy() else rested + 1
        is_late = time.monotonic() - last_s > latest_s
        if not rested and not is_late:
            continue
        is_due = rested > _RESTED and time.monotonic() - all_s > _ALL_S
        if num_models() != num_kept or is_due:
            num_kept, all_s = num_models(), time.monotonic()
            collect_all()
        elif gc.get_count()[2]:
            collect_new()
        last_s = time.monotonic()
