"""Keys that are pressed while a model loads or a reply is drawn must not appear there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def without_echo(stdin: TextIO) -> Iterator[None]:
    """Typed keys wait unseen for the next prompt; Ctrl-C works as ever."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    try:
        before = termios.tcgetattr(stdin)
    except (OSError, ValueError, termios.error):  # no terminal
        yield
        return
    silent = [*before]
    silent[0] &= ~termios.ICRNL  # Enter must stay Enter for the editor that reads it later
    silent[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
