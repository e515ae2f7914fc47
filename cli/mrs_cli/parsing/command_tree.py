"""From groups of flags to commands of the parser, and the help of the commands."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from mrs_cli.parsing.flags.embed_flags import TextFlags
from mrs_cli.parsing.flags.option import HEADINGS, Usual
from mrs_cli.parsing.flags.prompt_flags import ModelWord
from mrs_cli.parsing.help_texts import COMMAND_HELP, LISTED, ROOT, CommandHelp
from mrs_cli.parsing.model_names import is_model_name
from mrs_cli.parsing.spellings import DEFAULT_COMMAND, rewritten, with_default_command

#: Whether `--help all` was given, in the parser's context.
_ALL_HELP = "mrs_cli.all_help"
#: Columns of names in the short help, without those between.
_NAME_COLUMNS = 24


def takes(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the flags of `groups`, and calls it with one instance of each, in order."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(ctx: typer.Context, **values: Any) -> None:
            function(
                ctx, *(group(**{f.name: values[f.name] for f in fields(group)}) for group in groups)
            )

        # Typer reads the flags from the signature.
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
                *(parameter for group in groups for parameter in _parameters(group)),
            ]
        )
        command.__doc__ = function.__doc__
        command.groups = groups  # type: ignore[attr-defined]
        return command

    return decorate


@cache
def _hints(group: type) -> dict[str, Any]:
    return typing.get_type_hints(group, include_extras=True)


def _parameters(group: type) -> list[inspect.Parameter]:
    hints = _hints(group)
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[each.name],
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
        )
        for each in fields(group)
    ]


class Commands(Mapping[str, Any]):
    """Commands by name, each built at its first look-up: a process uses one or two of them."""

    #: Further names of commands.
    ALIASES: ClassVar = {"multimodal-plain": "vision-plain", "ls": "list"}

    def __init__(self, builders: Mapping[str, Callable[[], Any]]) -> None:
        self.builders = builders
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        name = self.ALIASES.get(name, name)
        if name not in self._built:
            self._built[name] = self.builders[name]()
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in self.builders or name in self.ALIASES  # builds nothing

    def __iter__(self) -> Iterator[str]:
        return iter(self.builders)

    def __len__(self) -> int:
        return len(self.builders)


def flag_command(name: str, callback: Callable[..., None]) -> Any:
    """The parser's command of a callback that `takes` flags; `COMMAND_HELP` has its help."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=COMMAND_HELP[name].summary, cls=FlagCommand)(callback)
    return typer.main.get_command(app)


def flag_group(
    name: str,
    callback: Callable[..., None],
    commands: Commands,
    default_groups: Iterable[type] = (),
    **settings: Any,
) -> Any:
    """The parser's group of `commands`, whose own flags are those that the callback `takes`.

    `default_groups` are the flags of `run` below it, which may be left out.
    """
    app = typer.Typer(
        name=name or None,
        help=_texts(name).summary,
        cls=FlagGroup,
        add_completion=False,
        rich_markup_mode=None,
        **settings,
    )
    app.callback()(callback)
    group: Any = typer.main.get_command(app)
    group.commands = commands
    group.default_groups = tuple(default_groups)
    return group


def _texts(name: str | None) -> CommandHelp:
    """The help of a command; `mrs` itself has no name."""
    return COMMAND_HELP.get(name or "", ROOT)


def _is_listed(name: str, ctx: Any) -> bool:
    """Whether the help lists a flag, or a command, of this name."""
    commands = ctx.command_path.split()[1:]
    return all(name in LISTED[each] for each in commands if each in LISTED)


def panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Names and help of the visible parameters of `command` by heading."""
    by_heading: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
    parameters = _all_parameters(command, ctx)
    #: Of parameters with the same name, the parser takes the last.
    owners = {name: parameter for parameter in parameters for name in parameter.opts}
    for parameter in parameters:
        if not getattr(parameter, "hidden", False) and _is_listed(parameter.name, ctx):
            heading = getattr(parameter, "rich_help_panel", None) or "General"
            own = [name for name in parameter.opts if owners[name] is parameter]
            by_heading[heading].append(_names_and_help(parameter, own))
    return {heading: records for heading, records in by_heading.items() if records}


def _all_parameters(command: Any, ctx: Any) -> list[Any]:
    """The parameters of `command`, and of the command below it that may be left out."""
    own = command.get_params(ctx)
    commands = command.commands
    if DEFAULT_COMMAND not in commands:
        return list(own)
    default = commands[DEFAULT_COMMAND].get_params(ctx)
    names = {parameter.name for parameter in default}
    return [*default, *(parameter for parameter in own if parameter.name not in names)]


def _names_and_help(parameter: Any, own: list[str]) -> tuple[str, str]:
    """`-s, --seed N`, and its help with the default, or with `[required]`."""
    metavar = parameter.metavar or ""
    if parameter.param_type_name == "argument":
        return metavar, parameter.help
    # The names of the parser's own help option have no fixed order.
    names = ", ".join(sorted(own, key=len)) + (f" {metavar}" if metavar else "")
    if parameter.required:
        return names, f"{parameter.help} [required]"
    default = parameter.show_default
    if default and type(parameter.default) is int:  # not a bool
        default = str(parameter.default)
    if isinstance(default, str):
        return names, f"{parameter.help} [default: {default}]"
    return names, parameter.help


def usual_flags(groups: Iterable[type], ctx: Any) -> list[tuple[str, str]]:
    """Names and the first sentence of the help of the flags that are marked as `Usual`."""
    usual: dict[str, Any] = {}
    for group in groups:
        for each in fields(group):
            declared, *marks = _hints(group)[each.name].__metadata__
            if marks and _is_listed(each.name, ctx) and _is_usual(marks[0], ctx):
                usual[each.name] = declared
    by_heading = sorted(usual.values(), key=lambda each: HEADINGS.index(each.rich_help_panel))
    return list(map(_short_record, by_heading))


def _is_usual(mark: Usual, ctx: Any) -> bool:
    if ctx.parent is None:
        return mark.first
    return not mark.commands or not set(mark.commands).isdisjoint(ctx.command_path.split())


def _short_record(declared: Any) -> tuple[str, str]:
    """A letter, the first long name and the metavar; and the first sentence."""
    declared_names = (declared.default, *(declared.param_decls or ()))
    names = [name for name in declared_names if isinstance(name, str)]
    letters = [name for name in names if not name.startswith("--")][:1]
    long = [name for name in names if name.startswith("--")][:1]
    sentence = declared.help.split(". ")[0].split("; ")[0].rstrip(".")
    metavar = f" {declared.metavar}" if declared.metavar else ""
    record = f"{', '.join([*letters, *long])}{metavar}".strip()
    if letters and len(record) > _NAME_COLUMNS:
        record = f"{letters[0]}{metavar}"
    return record, sentence


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    by_heading = panels(command, ctx)
    # One width for all panels aligns their columns; longer names get a line of their own.
    longest = max(len(names) for records in by_heading.values() for names, _ in records)
    width = min(longest, formatter.width // 2 - 4)
    for heading, records in by_heading.items():
        with formatter.section(heading):
            formatter.write_dl([(names.ljust(width), text) for names, text in records], width)


class _Helped:
    """The help of a command: short, or with all flags under headings after `--help all`."""

    name: str | None
    callback: Any
    commands: Mapping[str, Any] = MappingProxyType({})
    #: The flags of `run` below this command.
    default_groups: tuple[type, ...] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if ctx.meta.get(_ALL_HELP):
            self._format_commands(ctx, formatter)
            _format_options(self, ctx, formatter)
        else:
            self._format_short(ctx, formatter)

    def _format_short(self, ctx: Any, formatter: Any) -> None:
        tasks: dict[str, list[tuple[str, str]]] = {}
        for name in self.commands:
            texts = COMMAND_HELP[name]
            if texts.task and (ctx.parent is None or name != DEFAULT_COMMAND):
                tasks.setdefault(texts.task, []).append((name, texts.summary))
        for task, records in tasks.items():
            _write_columns(formatter, task, records)
        groups = (*self.default_groups, *getattr(self.callback, "groups", ()))
        _write_columns(formatter, "Flags", [*usual_flags(groups, ctx), *_HELP_RECORDS])

    def _format_commands(self, ctx: Any, formatter: Any) -> None:
        records = [
            (name, COMMAND_HELP[name].summary) for name in self.commands if _is_listed(name, ctx)
        ]
        if records:
            _write_columns(formatter, "Commands", records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        examples = _texts(self.name).examples
        if not ctx.meta.get(_ALL_HELP):
            examples = examples[:2]
        if examples:
            formatter.write_paragraph()
            formatter.write("".join(f"{line}\n" for line in ("Examples:", *_indented(examples))))

    def get_short_help_str(self, limit: int = 0) -> str:
        return _texts(self.name).summary  # not cut, because the help wraps it

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [_texts(self.name).usage]


def _without_all(ctx: Any, words: list[str]) -> list[str]:
    """`words` without the word `all` after `--help`, which the context then remembers."""
    for index, (flag, value) in enumerate(pairwise(words)):
        if flag in _HELP_FLAGS and value == "all":
            ctx.meta[_ALL_HELP] = True
            return [*words[: index + 1], *words[index + 2 :]]
    return words


_HELP_FLAGS = ("-h", "--help")
#: What they do; the parser's own text does not know `all`.
_HELP_RECORDS = [("-h, --help [all]", "Show this help, or all commands and flags")]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _write_columns(formatter: Any, heading: str, records: list[tuple[str, str]]) -> None:
    width = min(_NAME_COLUMNS, formatter.width // 2 - 4)
    with formatter.section(heading):
        formatter.write_dl([(name.ljust(width), text) for name, text in records], width)


class FlagCommand(_Helped, TyperCommand):
    """A command with flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, rewritten(_without_all(ctx, args)))


class FlagGroup(_Helped, TyperGroup):
    """Several commands, of which `run` may be left out."""

    commands: Any  # `Commands`

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = rewritten(_without_all(ctx, args), self.commands)
        words = (ModelWord, TextFlags)
        takes_model = any(issubclass(group, words) for group in self.default_groups)
        is_model = is_model_name if takes_model else lambda _: False
        return super().parse_args(ctx, with_default_command(args, self, is_model))
