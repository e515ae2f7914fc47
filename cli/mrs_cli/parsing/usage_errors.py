"""The parser's errors as one line, with a hint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mrs.errors import MrsError, Unsupported, UsageError
from mrs_cli.parsing.refusals import way_out
from mrs_cli.parsing.spellings import DEFAULT_COMMAND


def usage_error(error: Any, tree: Any) -> MrsError:
    """What the parser reports, as an error of ours; Unsupported for what only mistral.rs has."""
    context = getattr(error, "ctx", None)
    path = _command_path(context) if context else [tree]
    command = " ".join(["mrs", *(command.name for command in path[1:])])
    see = f"see {command} --help"
    if hasattr(error, "possibilities"):  # the parser's error for an unknown flag
        flag = error.option_name
        if instead := way_out(flag):
            return Unsupported(f"{flag} is not supported", hint=instead)
        hint = _place_of(flag, path)
        hint = _similar_flag(flag, path) if hint is None else hint
        return UsageError(f"{command} has no flag {flag}", hint=hint or see)
    what = re.sub(r"\b[oO]ption '", "flag '", error.format_message().rstrip("."))
    what, question, suggestion = what.partition(". Did you mean ")
    hint = f"did you mean {suggestion}" if question else see
    unknown = re.search(r"o such command '([\w-]+)'", what)
    if unknown and (instead := way_out(unknown[1])):
        return Unsupported(f"{unknown[1]} is not supported", hint=instead)
    extra = re.search(r"extra argument\S* \(([\w-]+)", what)
    if extra and extra[1] in tree.commands:
        hint = f"put -m after {extra[1]}"
    return UsageError(what[:1].lower() + what[1:], hint=hint)


def either(names: Sequence[str]) -> str:
    """`a, b or c`"""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _command_path(context: Any) -> list[Any]:
    """The commands from `mrs` itself to the one that was parsed."""
    path: list[Any] = []
    while context is not None:
        path.insert(0, context.command)
        context = context.parent
    return path


def _place_of(flag: str, path: list[Any]) -> str | None:
    """Where `flag` belongs, which the last command of `path` lacks; None if nowhere."""
    for outer, inner in reversed(list(pairwise(path))):
        if flag in _flag_names(outer):
            if inner.commands:
                return ""
            return f"it is a global flag, put it before {inner.name}"
    for group in reversed(path):
        if owners := [name for name, sub in group.commands.items() if flag in _flag_names(sub)]:
            selectors = [name for name in owners if name != DEFAULT_COMMAND]
            return f"it is a flag of {either(selectors or owners)}"
    return None


def _similar_flag(flag: str, path: list[Any]) -> str:
    from difflib import get_close_matches

    known = {name.lstrip("-"): name for command in path for name in _flag_names(command)}
    near = get_close_matches(flag.lstrip("-"), known, n=1)
    return f"did you mean {known[near[0]]}?" if near else ""


def _flag_names(command: Any) -> set[str]:
    return {name for option in command.params for name in option.opts} | {"--help", "-h"}
