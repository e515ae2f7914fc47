"""Flags that stand elsewhere than on the command line: in `MRS_` variables and in a file.

Every flag has a variable, `MRS_` and its long name in capitals: `--max-seqs` is `MRS_MAX_SEQS`.
`--config FILE`, or `MRS_CONFIG`, names a file as presets are. What stands on the command line comes
before variables, and variables before the file; values of one flag are never added up. The words
of a setting are put behind the innermost command that takes the flag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mrs.errors import NotReadable, UsageError
from mrs_cli.parsing.model_names import is_model_name
from mrs_cli.parsing.own_variables import own_names
from mrs_cli.parsing.presets import (
    KINDS,
    Part,
    long_flags,
    near,
    parsers,
    parts_of,
    read_flags,
    words_of,
)
from mrs_cli.parsing.spellings import DEFAULT_COMMAND

PREFIX = "MRS_"
_CONFIG = "--config"
#: Its own `--config` is a file of models.
_OTHER_CONFIG = "multi-model"
#: What stands in variables when these run is not meant for what they write.
_WITHOUT_VARIABLES = ("save",)
#: The heading of flags that only a server takes, what starts one, and by which flags.
_OF_SERVERS = "Server"
_SERVING, _STARTING = ("serve", "multi-model"), ("-p", "--port", "--uds")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class Settings(NamedTuple):
    """A command line with all settings; `sources` has where each flag that was added stands."""

    words: list[str]
    notes: list[str]
    sources: dict[str, str]


class _Place(NamedTuple):
    """A command of the line: where words may be put, and the flags that it takes there."""

    start: int
    flags: Mapping[str, Any]


def with_settings(words: Sequence[str], tree: Any, variables: Mapping[str, str]) -> Settings:
    """`words` with the settings of variables and of a file. Raises NotReadable and UsageError."""
    own = own_names()
    given = {
        name: text
        for name, text in variables.items()
        if name.startswith(PREFIX) and name not in own
    }
    is_help = not {"-h", "--help", "-V", "--version"}.isdisjoint(words)
    if is_help or not (given or any(word.startswith(_CONFIG) for word in words)):
        return Settings(list(words), [], {})
    by_default = given.pop("MRS_CONFIG", "")
    words, path = _without_config(words, tree, by_default)
    if not words:
        return Settings([], [], {})
    parts = list(parts_of(words, tree))
    places = _places(parts, tree)
    if any(part.name in _WITHOUT_VARIABLES for part in parts if part.kind == "command"):
        given = {}
    taken = {flag: each for place in reversed(places) for flag, each in place.flags.items()}
    if not _starts_server(parts):
        taken = {f: each for f, each in taken.items() if each.rich_help_panel != _OF_SERVERS}
    by_variable = {_variable(flag): flag for flag in taken}
    unknown = [name for name in given if name not in by_variable]
    known = _all_flags(tree) if unknown or path else {}
    _refuse_unknown(unknown, known, own)
    found: dict[str, tuple[str, Any, str]] = {}
    notes = []
    if path:
        values = _read(path, known)
        left_out = [flag for flag in values if flag not in taken]
        if left_out and path != by_default:  # what variables say is for many commands
            command = next((p.name for p in parts if p.kind == "command"), DEFAULT_COMMAND)
            notes = [f"{path}: mrs {command} takes no --{', --'.join(left_out)}"]
        for flag in (flag for flag in values if flag in taken):
            found[taken[flag].name] = (flag, values[flag], path)
    for name, flag in by_variable.items():
        if given.get(name):
            found[taken[flag].name] = (flag, _value(name, given[name], taken[flag]), name)
    for name in _on_the_line(parts, taken):
        found.pop(name, None)
    return _inserted(words, places, found, notes)


def _inserted(
    words: Sequence[str],
    places: Sequence[_Place],
    found: Mapping[str, tuple[str, Any, str]],
    notes: list[str],
) -> Settings:
    new: dict[int, list[str]] = {}
    sources = {}
    for flag, value, source in found.values():
        place = next(each for each in places if flag in each.flags)
        new.setdefault(place.start, []).extend(words_of(flag, value, place.flags[flag]))
        sources[f"--{flag}"] = source
    all_words = [
        word
        for index in range(len(words) + 1)
        for word in (*new.get(index, ()), *words[index : index + 1])
    ]
    return Settings(all_words, notes, sources)


def with_source(error: UsageError, sources: Mapping[str, str]) -> UsageError:
    """The error of a flag that stands elsewhere, with that place."""
    named = [source for flag, source in sources.items() if flag in error.what.split()]
    if not named or error.where:
        return error
    return UsageError(error.what, where=named[0], hint=error.hint)


def _without_config(words: Sequence[str], tree: Any, default: str) -> tuple[list[str], str]:
    """`words` without --config, and its last value."""
    left, path = list(words), default
    for part in reversed(list(parts_of(words, tree))):
        if part.name == _CONFIG and _OTHER_CONFIG not in part.path:
            if not part.value:
                raise UsageError("--config needs a file", hint="mrs serve --config FILE")
            path = part.value if path == default else path
            del left[part.start : part.end]
    return left, path


def _places(parts: Sequence[Part], tree: Any) -> list[_Place]:
    """The commands of the line, the innermost one first."""
    commands = [part for part in parts if part.kind == "command"]
    places = []
    group = tree
    for part in commands:
        group = group.commands[part.name]
        places.append(_Place(part.end, long_flags(group)))
    path = [part.name for part in commands]
    if len(path) == 1 and path[0] not in KINDS:
        both = {f: each for one in parsers(tree, path[0]) for f, each in long_flags(one).items()}
        places = [_Place(commands[0].end, both)]
    if not path or path[0] in KINDS:
        top = [tree, *(() if path else parsers(tree, DEFAULT_COMMAND))]
        places.insert(0, _Place(0, {f: each for one in top for f, each in long_flags(one).items()}))
    return places[::-1]


def _starts_server(parts: Sequence[Part]) -> bool:
    """Whether the line itself asks for a server: a variable for servers makes none of a chat."""
    commands = {part.name for part in parts if part.kind == "command"}
    flags = {part.name for part in parts if part.kind == "flag"}
    return not commands.isdisjoint(_SERVING) or not flags.isdisjoint(_STARTING)


def _on_the_line(parts: Sequence[Part], taken: Mapping[str, Any]) -> set[str]:
    """The parameters that are given in words, the model as a word among them."""
    written = set()
    for part in parts:
        if part.kind == "flag":
            letters = part.name[1:] if not part.name.startswith("--") else ""
            written |= {part.name, *(f"-{letter}" for letter in letters)}
    names = {
        each.name
        for each in taken.values()
        if not written.isdisjoint((*each.opts, *each.secondary_opts))
    }
    words = [part for part in parts if part.kind == "word"]
    if words and "model-id" in taken and not words[0].is_named and is_model_name(words[0].value):
        names.add(taken["model-id"].name)
    return names


def _all_flags(tree: Any) -> dict[str, Any]:
    """The flags of all commands."""
    commands = [tree, *tree.commands.values()]
    commands += [below for each in tree.commands.values() for below in each.commands.values()]
    return {flag: each for one in commands for flag, each in long_flags(one).items()}


def _refuse_unknown(names: Sequence[str], flags: Mapping[str, Any], own: set[str]) -> None:
    known = {*map(_variable, flags), *own}
    for name in (each for each in names if each not in known):
        ends = sorted(each.removeprefix(PREFIX) for each in known)
        raise UsageError(
            f"the variable {name} is no setting",
            hint=near(name.removeprefix(PREFIX), ends, PREFIX) or "unset it",
        )


def _variable(flag: str) -> str:
    return PREFIX + flag.upper().replace("-", "_")


def _value(name: str, text: str, parameter: Any) -> Any:
    """The value of a variable. Raises UsageError."""
    if parameter.is_flag and not parameter.count:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise UsageError(f"{name}={text} is neither true nor false")
        return text.lower() in _TRUE
    if parameter.count and not text.isdecimal():
        raise UsageError(f"{name}={text} is no number")
    if not parameter.multiple or not text.lstrip().startswith("["):
        return text
    import tomllib

    try:
        values = tomllib.loads(f"values = {text}")["values"]
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is no list as in TOML", hint='give ["A", "B"]') from error
    if not all(isinstance(each, int | float | str) for each in values):
        raise UsageError(f"{name} is no list of texts", hint='give ["A", "B"]')
    return values


def _read(path: str, known: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return read_flags(Path(path).expanduser(), known)
    except FileNotFoundError as error:
        raise NotReadable(f"--config: there is no file {path}") from error
