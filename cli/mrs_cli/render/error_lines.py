"""Errors and other messages as one line on standard error."""

from __future__ import annotations

from contextlib import suppress

from mrs_cli.environment import Environment
from mrs_cli.render.safe_text import one_line


def show_error(environment: Environment, text: str) -> None:
    """`mrs: error: …`"""
    say(environment, f"error: {text}", colour="31")


def say(environment: Environment, text: str, colour: str = "") -> None:
    """One line that begins with the program's name; it is lost if standard error is closed."""
    line = f"mrs: {one_line(text)}"
    if colour and environment.has_colour(environment.stderr):
        line = f"\x1b[{colour}m{line}\x1b[0m"
    with suppress(OSError):
        environment.stderr.write(line + "\n")
        environment.stderr.flush()
