"""The parser's errors as one line, with a hint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mrs.errors import MrsError, Unsupported, UsageError
from mrs_cli.parsing.flags.embed_flags import TextFlags
from mrs_cli.parsing.model_names import near_models
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
    if getattr(getattr(error, "param", None), "name", None) == "port":
        return _no_port(error.format_message())
    what = re.sub(r"\b[oO]ption '", "flag '", error.format_message().rstrip("."))
    what, question, suggestion = what.partition(". Did you mean ")
    hint = f"did you mean {suggestion}" if question else see
    unknown = re.search(r"o such command '(.*)'$", what, re.DOTALL)
    if unknown:
        reads_texts = TextFlags in getattr(path[-1], "default_groups", ())
        asks = f"text: {command}" if reads_texts else "question: mrs"
        return _unknown_command(unknown[1], what, hint, see, asks)
    extra = re.search(r"extra argument\S* \(([\w-]+)", what)
    if extra and extra[1] in tree.commands:
        hint = f"put -m after {extra[1]}"
    return UsageError(what[:1].lower() + what[1:], hint=hint)


def _no_port(message: str) -> UsageError:
    """What was meant with a port that is none: the letter is that of prompts elsewhere."""
    given = re.search(r"'((?:[^'\\]|\\.)*)' is not", message)
    if given is None or given[1].isdigit() or "://" in given[1]:
        return UsageError("--port needs a number from 0 to 65535")
    return UsageError(
        "-p is --port and needs a number", hint=f'to ask a question use -P "{given[1]}"'
    )


def _unknown_command(word: str, what: str, hint: str, see: str, asks: str) -> MrsError:
    """Neither a command nor a model: what may be meant.

    `asks` is what words with spaces are, and the command that takes them after a model.
    """
    if instead := way_out(word):
        return Unsupported(f"{word} is not supported", hint=instead)
    if any(map(str.isspace, word)):
        hint = f'put it before the {asks} demo "{word}"'
        return UsageError("no model is given", hint=hint)
    if hint == see and (near := near_models(word)):
        kind = "preset" if near[0].startswith("@") else "model"
        hint = f"did you mean the {kind} {either(near)}?"
    elif hint == see:
        hint = "mrs --help lists the commands, and mrs list the downloaded models"
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
