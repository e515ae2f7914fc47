"""Presets: named sets of flags in files, which `@NAME` stands for on a command line.

A preset is a TOML file in the folder of the user's settings, with flags by their long names:

    model-id = "Qwen/Qwen3-8B"
    isq = "q4k"
    temperature = 0.2

`@NAME` is always a preset; a folder of that name is `./@NAME`. The preset's flags take the place of
the word, so flags after it take precedence, and values of flags that may be given several times add
up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mrs.errors import NotReadable, UsageError
from mrs.process.files import read_at_most
from mrs_cli.parsing.spellings import DEFAULT_COMMAND

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
_MODEL_FLAGS = ("-m", "--model-id")
#: Commands that name the kind of a model: presets have flags of any.
_KINDS = ("plain", "vision-plain", "multimodal-plain", "gguf", "lora", "lora-gguf")
#: Commands whose first word is no model, or is a preset itself.
_OWN_WORDS = (
    *_KINDS, "launch", "save", "show", "stop", "embed", "rerank", "classify", "completions",
    "worker",
)  # fmt: skip
#: Commands that delete what -m names.
_DELETING = ("rm", "cache")
#: A larger file is no preset.
_MAX_FILE_BYTES = 1024**2


def presets_folder() -> Path:
    """The folder of the files; it may be missing."""
    from platformdirs import user_config_path

    return Path(user_config_path("mrs", appauthor=False)) / "presets"


def preset_path(name: str) -> Path:
    """The file of a preset, with or without @ before its name. Raises UsageError."""
    name = name.removeprefix("@")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a preset", hint="use letters, digits, dots, - and _"
        )
    return presets_folder() / f"{name}.toml"


def preset_names() -> list[str]:
    """The names of all presets, without @."""
    try:
        names = sorted(path.stem for path in presets_folder().glob("*.toml"))
    except OSError:
        return []
    return [name for name in names if _NAME.fullmatch(name)]


def read_preset(name: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a preset by the long names of its flags, without dashes.

    `known` are the parser's flags by the same names. Raises NotReadable and UsageError.
    """
    import tomllib

    path = preset_path(name)
    try:
        text = read_at_most(path, _MAX_FILE_BYTES).decode("utf-8-sig")
        values = tomllib.loads(text)
    except FileNotFoundError as error:
        raise _no_preset(name) from error
    except OSError as error:
        raise NotReadable(f"cannot read {path}", where=error.strerror or "") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML", where=str(error)) from error
    for flag, value in values.items():
        each = value if isinstance(value, list) else [value]
        if flag not in known:
            raise UsageError(
                f"{path}, line {_line(text, flag)}: there is no flag {flag}",
                hint=_near(flag, known) or "mrs run --help all lists them",
            )
        if not all(isinstance(one, bool | int | float | str) for one in each):
            raise UsageError(
                f"{path}, line {_line(text, flag)}: {flag} is no value of a flag",
                hint="give a text, a number, true, or a list of texts",
            )
    return values


def _no_preset(name: str) -> NotReadable:
    name = name.removeprefix("@")
    near = _near(name, preset_names(), "@")
    hint = near or f"mrs save {name} -m ID makes one, and mrs list shows them"
    return NotReadable(f"there is no preset {name}", hint=hint)


def _near(word: str, known: Any, mark: str = "") -> str:
    from difflib import get_close_matches

    near = get_close_matches(word.lstrip("-"), known, n=1)
    return f"did you mean {mark}{near[0]}?" if near else ""


def _line(text: str, flag: str) -> int:
    pattern = re.compile(rf"\s*[\"'\[]*{re.escape(flag)}\b")
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if pattern.match(line)), 1)


def long_flags(command: Any) -> dict[str, Any]:
    """The flags of a command by each long name without dashes; `help` is none."""
    return {
        name.removeprefix("--"): parameter
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--") and parameter.name != "help"
    }


def with_presets(words: Sequence[str], tree: Any) -> tuple[list[str], list[str]]:
    """`words` with the flags of a preset in the place of `@NAME`; and notes for a person.

    `@NAME` is the first word that is neither a command nor a value, where that is the model, or the
    value of -m. Flags that the command does not take are left out, which a note says. Raises as
    `read_preset` does.
    """
    found = _find(words, tree) if any("@" in word for word in words) else None
    if found is None:
        return list(words), []
    start, end, name, path = found
    command = path[0] if path else DEFAULT_COMMAND
    taken = {
        flag: each for one in _parsers(tree, command) for flag, each in long_flags(one).items()
    }
    if len(path) > 1 or "model-id" not in taken or command in _KINDS:
        raise UsageError(
            f"{name} cannot follow {path[-1]}", hint=f"leave that word out: mrs run {name}"
        )
    values = read_preset(name, long_flags(tree.commands["save"]))
    left_out = [flag for flag in values if flag not in taken]
    new = [word for flag in values if flag in taken for word in _words(flag, values, taken[flag])]
    note = f"{name}: mrs {command} takes no --{', --'.join(left_out)}"
    return [*words[:start], *new, *words[end:]], [note] if left_out else []


def _find(words: Sequence[str], tree: Any) -> tuple[int, int, str, list[str]] | None:
    """Where a preset is named: the words from start to end, its name, and the commands before."""
    path: list[str] = []
    group, valued = tree, _flags_with_values(tree, DEFAULT_COMMAND)
    is_named, before = False, ""
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if before:
            if before in _MODEL_FLAGS and word.startswith("@"):
                return index - 1, index + 1, word, path
            before = ""
        elif word == "--":
            return None
        elif word.startswith("-") and word != "-":
            if flag in _MODEL_FLAGS and value.startswith("@"):
                return index, index + 1, value, path
            is_named |= flag in _MODEL_FLAGS  # the first word is the question then
            before = flag if not equals and flag in valued else ""
        elif word in group.commands and not is_named:
            path.append(word)
            group = group.commands[word]
            if path[0] in _DELETING:
                return None
            valued = _flags_with_values(tree, path[0])
            is_named = path[-1] in _OWN_WORDS
        elif word.startswith("@") and not is_named:
            return index, index + 1, word, path
        else:
            is_named = True
    return None


def _words(flag: str, values: Mapping[str, Any], parameter: Any) -> Iterator[str]:
    """The words of a flag with its value, or each of its values."""
    value = values[flag]
    for each in value if isinstance(value, list) else [value]:
        if parameter.count:
            yield from [f"--{flag}"] * int(each)
        elif parameter.is_flag:
            yield from [f"--{flag}"] if each else []
        else:
            yield f"--{flag}={str(each).lower() if isinstance(each, bool) else each}"


def _below(command: Any) -> bool:
    return DEFAULT_COMMAND in command.commands


def _parsers(tree: Any, command: str) -> list[Any]:
    """What parses the flags of a command: itself, and `run` below it."""
    own = tree.commands[command]
    return [own, own.commands[DEFAULT_COMMAND]] if _below(own) else [own]


def _flags_with_values(tree: Any, command: str) -> set[str]:
    return {
        name
        for one in (tree, *_parsers(tree, command))
        for parameter in one.params
        if parameter.param_type_name == "option" and not (parameter.is_flag or parameter.count)
        for name in parameter.opts
    }
