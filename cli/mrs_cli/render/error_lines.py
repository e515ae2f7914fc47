"""Errors and other messages as one line on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mrs.errors import ExitCode, MrsError
from mrs_cli.environment import Environment
from mrs_cli.render.safe_text import json_text, one_line


def show_error(environment: Environment, error: MrsError | str) -> None:
    """`mrs: error: …`, and an object on standard output for those who read JSON there."""
    say(environment, f"error: {error}", colour="31")
    if not environment.json_errors:
        return
    found = {"message": str(error), "exit_code": int(ExitCode.INTERNAL)}
    if isinstance(error, MrsError):
        parts = {"what": error.what, "where": error.where, "hint": error.hint}
        found |= {**parts, "exit_code": int(error.exit_code)}
    with suppress(OSError):
        environment.stdout.write(json_text({"error": found}) + "\n")
        environment.stdout.flush()


#: What writes lines above a display that is redrawn meanwhile.
_writers: list[Callable[[str], None]] = []


@contextmanager
def lines_by(write: Callable[[str], None]) -> Iterator[None]:
    """Lets `write` write the lines of `say`, without colours."""
    _writers.append(write)
    try:
        yield
    finally:
        _writers.pop()


def say(environment: Environment, text: str, colour: str = "") -> None:
    """One line that begins with the program's name; it is lost if standard error is closed."""
    line = f"mrs: {one_line(text)}"
    if _writers:
        _writers[-1](line)
        return
    if colour and environment.has_colour(environment.stderr):
        line = f"\x1b[{colour}m{line}\x1b[0m"
    with suppress(OSError):
        environment.stderr.write(line + "\n")
        environment.stderr.flush()
