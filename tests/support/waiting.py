"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

#: How long anything may take that happens at once on a quiet machine.
PATIENCE_S = 120.0


def until(is_so: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Until something is so; fails if that takes longer than on a machine that is very busy."""
    deadline_s = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline_s, f"it did not happen in {seconds:g} s"
        time.sleep(0.005)
