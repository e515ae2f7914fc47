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
from typing import Any, Literal, NamedTuple

from mrs.errors import NotReadable, UsageError
from mrs.process.files import read_at_most
from mrs_cli.parsing.spellings import DEFAULT_COMMAND

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
_MODEL_FLAGS = ("-m", "--model-id")
#: Commands that name the kind of a model: presets have flags of any.
KINDS = ("plain", "vision-plain", "multimodal-plain", "gguf", "lora", "lora-gguf")
#: Commands whose first word is no model, or is a preset itself.
_OWN_WORDS = (
    *KINDS, "launch", "save", "show", "stop", "embed", "rerank", "classify", "completions",
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
    try:
        return read_flags(preset_path(name), known)
    except FileNotFoundError as error:
        raise _no_preset(name) from error


def read_flags(path: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    """As `read_preset`, of any file. Raises FileNotFoundError, NotReadable and UsageError."""
    import tomllib

    try:
        text = read_at_most(path, _MAX_FILE_BYTES).decode("utf-8-sig")
        values = tomllib.loads(text)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotReadable(f"cannot read {path}", where=error.strerror or "") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML", where=str(error)) from error
    for flag, value in values.items():
        each = value if isinstance(value, list) else [value]
        if flag not in known:
            raise UsageError(
                f"{path}, line {_line(text, flag)}: there is no flag {flag}",
                hint=near(flag, known) or "mrs run --help all lists them",
            )
        if not all(isinstance(one, bool | int | float | str) for one in each):
            raise UsageError(
                f"{path}, line {_line(text, flag)}: {flag} is no value of a flag",
                hint="give a text, a number, true, or a list of texts",
            )
    return values


def _no_preset(name: str) -> NotReadable:
    name = name.removeprefix("@")
    hint = (
        near(name, preset_names(), "@")
        or f"mrs save {name} -m ID makes one, and mrs list shows them"
    )
    return NotReadable(f"there is no preset {name}", hint=hint)


def near(word: str, known: Any, mark: str = "") -> str:
    """A question for the known word that is nearest, if one is near."""
    from difflib import get_close_matches

    found = get_close_matches(word.lstrip("-"), known, n=1)
    return f"did you mean {mark}{found[0]}?" if found else ""


def _line(text: str, flag: str) -> int:
    pattern = re.compile(rf"\s*[\"'\[]*{re.escape(flag)}\b")
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if pattern.match(line)), 1)


def long_flags(command: Any) -> dict[str, Any]:
    """The flags of a command by each long name without dashes; `help` is none, nor is --config."""
    return {
        name.removeprefix("--"): parameter
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--") and parameter.name not in ("help", "config_file")
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
    name, path = found.value, found.path
    command = path[0] if path else DEFAULT_COMMAND
    taken = {flag: each for one in parsers(tree, command) for flag, each in long_flags(one).items()}
    if len(path) > 1 or "model-id" not in taken or command in KINDS:
        raise UsageError(
            f"{name} cannot follow {path[-1]}", hint=f"leave that word out: mrs run {name}"
        )
    values = read_preset(name, long_flags(tree.commands["save"]))
    left_out = [flag for flag in values if flag not in taken]
    new = [
        word
        for flag in values
        if flag in taken
        for word in words_of(flag, values[flag], taken[flag])
    ]
    note = f"{name}: mrs {command} takes no --{', --'.join(left_out)}"
    return [*words[: found.start], *new, *words[found.end :]], [note] if left_out else []


class Part(NamedTuple):
    """A command, a flag with its value, or another word: `words[start:end]` of a command line.

    Of a flag, `name` is as it is written, and `value` may be empty. Of a word, it is the word.
    `path` are the commands before; `is_named` is whether the model has been named before.
    """

    kind: Literal["command", "flag", "word"]
    start: int
    end: int
    name: str
    value: str
    path: tuple[str, ...]
    is_named: bool


def parts_of(words: Sequence[str], tree: Any) -> Iterator[Part]:
    """The parts of a command line, up to `--`."""
    path: tuple[str, ...] = ()
    group, valued = tree, _flags_with_values(tree, DEFAULT_COMMAND)
    is_named, index = False, 0
    while index < len(words) and words[index] != "--":
        word, start = words[index], index
        index += 1
        if word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            if not equals and name in valued and index < len(words):
                value = words[index]
                index += 1
            yield Part("flag", start, index, name, value, path, is_named)
            is_named |= name in _MODEL_FLAGS  # the first word is the question then
        elif word in group.commands and not is_named:
            yield Part("command", start, index, word, "", path, is_named)
            path = (*path, word)
            group = group.commands[word]
            valued = _flags_with_values(tree, path[0])
            is_named = word in _OWN_WORDS
        else:
            yield Part("word", start, index, "", word, path, is_named)
            is_named = True


def _find(words: Sequence[str], tree: Any) -> Part | None:
    """The part of a command line that names a preset."""
    for part in parts_of(words, tree):
        if part.kind == "command" and (*part.path, part.name)[0] in _DELETING:
            return None
        is_model = part.name in _MODEL_FLAGS if part.kind == "flag" else not part.is_named
        if part.value.startswith("@") and is_model:
            return part
    return None


def words_of(flag: str, value: Any, parameter: Any) -> Iterator[str]:
    """The words of a flag with its value, or each of its values."""
    for each in value if isinstance(value, list) else [value]:
        if parameter.count:
            yield from [f"--{flag}"] * int(each)
        elif parameter.is_flag:
            yield from [f"--{flag}"] if each else []
        else:
            yield f"--{flag}={str(each).lower() if isinstance(each, bool) else each}"


def _below(command: Any) -> bool:
    return DEFAULT_COMMAND in command.commands


def parsers(tree: Any, command: str) -> list[Any]:
    """What parses the flags of a command: itself, and `run` below it."""
    own = tree.commands[command]
    return [own, own.commands[DEFAULT_COMMAND]] if _below(own) else [own]


def _flags_with_values(tree: Any, command: str) -> set[str]:
    return {
        name
        for one in (tree, *parsers(tree, command))
        for parameter in one.params
        if parameter.param_type_name == "option" and not (parameter.is_flag or parameter.count)
        for name in parameter.opts
    }
