"""Keys that are typed while a model loads or a reply is shown."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_READ_BYTES = 4096


@contextmanager
def without_echo(stdin: TextIO) -> Iterator[str]:
    """Turns the terminal's echo off: typed keys wait for the next prompt, Ctrl-C still works.

    Gives the keys that were typed before, with the terminal's newlines as Enter keys again. To be
    used in the main thread, which gets signals: a shell that continues the program after Ctrl-Z
    has turned the echo on.
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

    def silence() -> None:
        silent = termios.tcgetattr(stdin)
        silent[0] &= ~termios.ICRNL  # Enter stays Enter, for the editor that reads it later
        silent[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(stdin, termios.TCSADRAIN, silent)

    def silence_again(*_signal: object) -> None:
        with suppress(OSError, ValueError, termios.error):  # the terminal may be gone
            if os.tcgetpgrp(stdin.fileno()) == os.getpgrp():  # else this program would be stopped
                silence()

    silence()
    on_continue = signal.signal(signal.SIGCONT, silence_again)
    try:
        yield _typed_before(stdin).replace("\n", "\r").replace("\0", "")
    finally:
        signal.signal(signal.SIGCONT, on_continue)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _typed_before(stdin: TextIO) -> str:
    """The bytes that can be read without waiting, as text."""
    data = b""
    while select.select([stdin], [], [], 0)[0] and (more := os.read(stdin.fileno(), _READ_BYTES)):
        data += more
    return data.decode(stdin.encoding or "utf-8", "replace")
