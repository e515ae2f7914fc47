"""Errors as one line on standard error."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from mrs.errors import UsageError
from mrs_cli.environment import Environment
from mrs_cli.render.text import one_line


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
    command = context.command if context else tree
    if hasattr(error, "possibilities"):  # the parser's error for a flag that it does not know
        flag = error.option_name
        return UsageError(f"no flag {flag}", hint=_place_of(flag, command, tree))
    what = error.format_message().rstrip(".").replace("Value error, ", "")
    what, question, suggestion = what.partition(". Did you mean ")
    hint = f"did you mean {suggestion}" if question else f"see {_help_of(command, tree)}"
    return UsageError(what[:1].lower() + what[1:], hint=hint)


def _place_of(flag: str, command: Any, tree: Any) -> str:
    """Where a flag belongs that `command` does not have, or the one that was perhaps meant."""
    if command is not tree and flag in _flag_names(tree):
        return f"it is a global flag, put it before {command.name}"
    owners = [name for name, sub in tree.commands.items() if flag in _flag_names(sub)]
    if owners:
        return f"it belongs after {' or '.join(owners)}"
    known = {name.lstrip("-"): name for name in _flag_names(tree) | _flag_names(command)}
    near = get_close_matches(flag.lstrip("-"), known, n=1)
    return f"did you mean {known[near[0]]}?" if near else f"see {_help_of(command, tree)}"


def _flag_names(command: Any) -> set[str]:
    return {name for option in command.params for name in option.opts} | {"--help", "-h"}


def _help_of(command: Any, tree: Any) -> str:
    return "mrs --help" if command is tree else f"mrs {command.name} --help"
