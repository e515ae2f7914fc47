"""Keys that are pressed while a model loads or a reply is drawn must not appear there."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_READ_BYTES = 4096


@contextmanager
def without_echo(stdin: TextIO) -> Iterator[str]:
    """Typed keys wait unseen for the next prompt; Ctrl-C works as ever.

    Gives what was typed before: the terminal has made newlines of its Enter keys, which are Enter
    keys again.
    """
    try:
        import termios
    except ImportError:  # Windows
        yield ""
        return
    try:
        before = termios.tcgetattr(stdin)
    except (OSError, ValueError, termios.error):  # no terminal
        yield ""
        return
    silent = [*before]
    silent[0] &= ~termios.ICRNL  # Enter must stay Enter for the editor that reads it later
    silent[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(stdin, termios.TCSADRAIN, silent)
    try:
        yield _waiting(stdin).replace("\n", "\r").replace("\0", "")
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _waiting(stdin: TextIO) -> str:
    """What can be read without waiting."""
    data = b""
    while select.select([stdin], [], [], 0)[0] and (more := os.read(stdin.fileno(), _READ_BYTES)):
        data += more
    return data.decode(stdin.encoding or "utf-8", "replace")
