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
_SWITCH_S = 0.0005
#: A collection of all objects waits until no reply is made, but no longer than this.
_LATEST_S = 30.0
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
    gc.collect()
    gc.freeze()


async def collect(
    is_busy: Callable[[], bool],
    num_models: Callable[[], int],
    interval_s: float = 1.0,
    latest_s: float = _LATEST_S,
) -> None:
    """Collect the garbage of requests while the server rests, until this is cancelled.

    What there is once another number of models is loaded, is left out from then on.
    """
    last_s, num_kept = time.monotonic(), 0
    while True:
        await asyncio.sleep(interval_s)
        is_late = time.monotonic() - last_s > latest_s
        if is_busy() and not is_late:
            continue
        if num_models() != num_kept:
            num_kept = num_models()
            collect_all()
        elif gc.get_count()[2]:
            gc.collect()
        last_s = time.monotonic()
