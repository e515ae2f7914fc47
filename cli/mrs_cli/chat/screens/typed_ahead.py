"""Keys that are typed while a model loads or a reply is shown."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_READ_BYTES = 4096


@contextmanager
def without_echo(stdin: TextIO) -> Iterator[str]:
    """Turns the terminal's echo off: typed keys wait for the next prompt, Ctrl-C still works.

    Gives the keys that were typed before, with the terminal's newlines as Enter keys again.
    """
    try:
        import termios
    except ImportError:  # Windows
        yield ""
        return
    try:
        before = termios.tcgetattr(stdin)
    except (OSError, ValueError, termios.error):  # not a terminal
        yield ""
        return
    silent = [*before]
    silent[0] &= ~termios.ICRNL  # Enter stays Enter, for the editor that reads it later
    silent[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(stdin, termios.TCSADRAIN, silent)
    try:
        yield _typed_before(stdin).replace("\n", "\r").replace("\0", "")
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _typed_before(stdin: TextIO) -> str:
    """The bytes that can be read without waiting, as text."""
    data = b""
    while select.select([stdin], [], [], 0)[0] and (more := os.read(stdin.fileno(), _READ_BYTES)):
        data += more
    return data.decode(stdin.encoding or "utf-8", "replace")
