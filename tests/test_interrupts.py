"""A Ctrl-C that comes at a bad moment is neither lost nor early."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

from mrs.process.interrupts import interrupts_held


def interrupted(work: Callable[[], object]) -> None:
    with interrupts_held():
        signal.raise_signal(signal.SIGINT)
        work()


def test_it_takes_effect_afterwards() -> None:
    done: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: done.append(True))
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_inside_stays_itself() -> None:
    with pytest.raises(ValueError, match="inside"):
        interrupted(lambda: int("inside"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_handlers_and_threads_are_left_alone() -> None:
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]

    def run() -> None:
        with interrupts_held():
            seen.append(0)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.SIGINT, 0]
