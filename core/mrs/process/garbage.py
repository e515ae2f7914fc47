"""Pause the garbage collector while many small objects are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Disable the cyclic garbage collector inside the `with` block.

    Reading the headers of large models creates hundreds of thousands of objects, none of which is
    garbage: scanning them again and again would take a third of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
