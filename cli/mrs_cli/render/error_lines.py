"""Errors as one line on standard error."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from mrs.errors import UsageError
from mrs_cli.environment import Environment
from mrs_cli.render.safe_text import either, one_line


def show_error(environment: Environment, text: str) -> None:
    """`mrs: error: …`, one line whatever `text` holds."""
    say(environment, f"error: {text}", colour="31")


def say(environment: Environment, text: str, colour: str = "") -> None:
    """One line that begins with the program's name; a closed standard error loses it."""
    line = f"mrs: {one_line(text)}"
    if colour and environment.has_colour(environment.stderr):
        line = f"\x1b[{colour}m{line}\x1b[0m"
    with suppress(OSError):
        environment.stderr.write(line + "\n")
        environment.stderr.flush()


def usage_error(error: Any, tree: Any) -> UsageError:
    """What the parser found wrong, in one line with what to try."""
    context = getattr(error, "ctx", None)
    path = _path(context) if context else [tree]
    see = f"see {' '.join(['mrs', *(command.name for command in path[1:])])} --help"
    if hasattr(error, "possibilities"):  # the parser's error for a flag that it does not know
        flag = error.option_name
        return UsageError(f"no flag {flag}", hint=_place_of(flag, path) or see)
    what = error.format_message().rstrip(".").replace("Value error, ", "")
    what, question, suggestion = what.partition(". Did you mean ")
    hint = f"did you mean {suggestion}" if question else see
    return UsageError(what[:1].lower() + what[1:], hint=hint)


def _path(context: Any) -> list[Any]:
    """The commands from `mrs` itself to the one that was being parsed."""
    path: list[Any] = []
    while context is not None:
        path.insert(0, context.command)
        context = context.parent
    return path


def _place_of(flag: str, path: list[Any]) -> str:
    """Where a flag belongs that the last of `path` does not have, or what was perhaps meant."""
    for outer, inner in reversed(list(pairwise(path))):
        if flag in _flag_names(outer):
            if hasattr(inner, "commands"):
                return f"it means nothing to {inner.name}"
            return f"it is a global flag, put it before {inner.name}"
    for group in reversed(path):
        commands = getattr(group, "commands", {})
        if owners := [name for name, sub in commands.items() if flag in _flag_names(sub)]:
            return f"it belongs after {either(owners)}"
    known = {name.lstrip("-"): name for command in path for name in _flag_names(command)}
    near = get_close_matches(flag.lstrip("-"), known, n=1)
    return f"did you mean {known[near[0]]}?" if near else ""


def _flag_names(command: Any) -> set[str]:
    return {name for option in command.params for name in option.opts} | {"--help", "-h"}
