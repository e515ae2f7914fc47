"""Other spellings of a command line, which are rewritten before it is parsed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import zip_longest
from typing import Any

#: The command that is meant if none is given.
DEFAULT_COMMAND = "run"

#: Flags that are true without a value.
_TRUE_ALONE = ("--thinking", "--enable-thinking")

#: Pairs of words, and what they mean. `run` finds out the kind of a model itself.
_PAIRS = {
    ("--paged-attn", "on"): ["--paged-attn"],
    ("--paged-attn", "off"): ["--no-paged-attn"],
    ("--paged-attn", "auto"): [],
    **{
        (command, kind): [command]
        for command in ("run", "serve", "bench", "plan", "tune", "quantize")
        for kind in ("auto", "text", "multimodal")
    },
}


def with_help_flag(words: list[str]) -> list[str]:
    """`words` with `--help` at their end if they begin with `help`."""
    if words[:1] != ["help"]:
        return words
    which = ["all"] if words[-1] == "all" else []
    return [*words[1 : len(words) - len(which)], "--help", *which]


def rewritten(words: list[str], commands: Collection[str] = ()) -> list[str]:
    """`words` as the parser reads them, which knows these `commands`."""
    rewritten_words: list[str] = []
    is_done = is_literal = False
    for word, after in zip_longest(words, words[1:]):
        is_literal |= word == "--"
        if is_literal:
            rewritten_words.append(word)
        elif is_done:
            is_done = False
        elif word.startswith("--paged-attn="):
            rewritten_words += _PAIRS.get(("--paged-attn", word.partition("=")[2]), [word])
        elif (word, after) in _PAIRS:
            rewritten_words += _PAIRS[word, after]
            is_done = True
        elif word in _TRUE_ALONE and (after is None or after in commands or after[:1] == "-"):
            rewritten_words.append(f"{word}=true")
        else:
            rewritten_words.append(word)
    return rewritten_words


def with_default_command(
    words: list[str], group: Any, is_model: Callable[[str], bool]
) -> list[str]:
    """`words` with `run` before a model or the first flag that only `run` has.

    So `mrs -i -m ID` is `mrs -i run -m ID`, and `mrs plan ID` is `mrs plan run ID`, but words
    after a command stay as they are.
    """
    if DEFAULT_COMMAND not in group.commands:
        return words
    needs_value = {
        name: not (option.is_flag or option.count)
        for option in group.params
        for name in (*option.opts, *option.secondary_opts)
    }
    is_value = False
    for index, word in enumerate(words):
        if is_value:
            is_value = False
        elif word in ("-", "--") or not word.startswith("-"):
            is_named = word not in group.commands and is_model(word)
            return [*words[:index], DEFAULT_COMMAND, *words[index:]] if is_named else words
        elif word.partition("=")[0] in needs_value:
            is_value = needs_value.get(word, False)
        elif not word.startswith("--") and word[:2] in needs_value:
            is_value = _ends_with_flag_of_value(word, needs_value)
        elif _is_flag_of(word, group.commands[DEFAULT_COMMAND]):
            return [*words[:index], DEFAULT_COMMAND, *words[index:]]
        else:
            return words
    return words


def _ends_with_flag_of_value(cluster: str, needs_value: dict[str, bool]) -> bool:
    """Whether the last of several short flags in one word, such as `-iP`, needs the next word."""
    values = [needs_value.get(f"-{letter}", False) for letter in cluster[1:]]
    return True in values and values.index(True) == len(values) - 1


def _is_flag_of(word: str, command: Any) -> bool:
    name = word.partition("=")[0] if word.startswith("--") else word[:2]
    return any(name in option.opts for option in command.params)
