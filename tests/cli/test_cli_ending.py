"""Ctrl-C while libraries are imported, which may swallow it or fail."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from mrs_cli.ending import interruptible


@pytest.fixture
def swallows(tmp_path, monkeypatch):
    """The name of a module that is interrupted while it is imported, and would not notice."""
    program = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    after = 1\n"
    (tmp_path / "swallows_ctrl_c.py").write_text(program + "except BaseException:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "swallows_ctrl_c"
    sys.modules.pop("swallows_ctrl_c", None)


def seen_before_the_end(name: str, *, checks: bool) -> list[str]:
    """What a block still does that imports `name`, and checks after that; Ctrl-C must end it."""
    done = []

    def block() -> None:
        with interruptible() as check:
            check()
            done.append(f"imported {bool(__import__(name).after)}")
            if checks:
                check()
            done.append("went on")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return done


def test_it_waits_for_the_end_of_an_import_and_then_for_a_check(swallows):
    assert seen_before_the_end(swallows, checks=True) == ["imported True"]


def test_it_is_not_lost_at_the_end(swallows):
    assert seen_before_the_end(swallows, checks=False) == ["imported True", "went on"]


def test_a_second_one_does_not_wait(tmp_path, monkeypatch):
    program = "import os, signal\nfor _ in range(2):\n    os.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "hangs.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert seen_before_the_end("hangs", checks=False) == []


def test_outside_of_imports_it_is_raised_at_once():
    def at_once() -> None:
        with interruptible():
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("was not raised")

    with pytest.raises(KeyboardInterrupt):
        at_once()
