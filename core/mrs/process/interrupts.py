"""Delay Ctrl-C while code runs that must not be interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Raise the KeyboardInterrupt of a Ctrl-C only at the end of the `with` block.

    An interrupted import leaves C modules behind that cannot be imported again, and some modules
    swallow the exception. Has no effect outside the main thread, or if another program has
    installed its own handler of the signal.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    was_pressed = False

    def remember(signal_number: int, frame: FrameType | None) -> None:
        nonlocal was_pressed
        was_pressed = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if was_pressed:
        raise KeyboardInterrupt
