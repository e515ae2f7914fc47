"""From groups of flags to commands of the parser, and the help of the commands."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from mrs_cli.parsing.help_texts import LISTED
from mrs_cli.parsing.spellings import rewritten, with_default_command


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
        return command

    return decorate


def _parameters(group: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
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
    ALIASES: ClassVar = {"multimodal-plain": "vision-plain"}

    def __init__(self, builders: Mapping[str, tuple[str, Callable[[], Any]]]) -> None:
        #: The help and the builder of each command.
        self.builders = builders
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        name = self.ALIASES.get(name, name)
        if name not in self._built:
            _, build = self.builders[name]
            self._built[name] = build()
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in self.builders or name in self.ALIASES  # builds nothing

    def __iter__(self) -> Iterator[str]:
        return iter(self.builders)

    def __len__(self) -> int:
        return len(self.builders)


def flag_command(name: str, help: str, callback: Callable[..., None]) -> Any:
    """The parser's command of a callback that `takes` flags."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=help, cls=FlagCommand, options_metavar="[FLAGS]")(callback)
    return typer.main.get_command(app)


def flag_group(callback: Callable[..., None], commands: Commands, **settings: Any) -> Any:
    """The parser's group of `commands`, whose own flags are those that the callback `takes`."""
    app = typer.Typer(cls=FlagGroup, add_completion=False, rich_markup_mode=None, **settings)
    app.callback()(callback)
    group: Any = typer.main.get_command(app)
    group.commands = commands
    return group


def _is_listed(name: str, ctx: Any) -> bool:
    """Whether the help lists a flag, or a command, of this name."""
    commands = ctx.command_path.split()[1:]
    return all(name in LISTED[each] for each in commands if each in LISTED)


def panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Names and help of the visible parameters of `command` by heading, as they are declared."""
    by_heading: dict[str, list[tuple[str, str]]] = {}
    parameters = command.get_params(ctx)
    #: Of parameters with the same name, the parser takes the last.
    owners = {name: parameter for parameter in parameters for name in parameter.opts}
    for parameter in parameters:
        if not getattr(parameter, "hidden", False) and _is_listed(parameter.name, ctx):
            heading = getattr(parameter, "rich_help_panel", None) or "General"
            own = [name for name in parameter.opts if owners[name] is parameter]
            by_heading.setdefault(heading, []).append(_names_and_help(parameter, own))
    return by_heading


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


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    by_heading = panels(command, ctx)
    # One width for all panels aligns their columns; longer names get a line of their own.
    longest = max(len(names) for records in by_heading.values() for names, _ in records)
    width = min(longest, formatter.width // 2 - 4)
    for heading, records in by_heading.items():
        with formatter.section(heading):
            formatter.write_dl([(names.ljust(width), text) for names, text in records], width)


class FlagCommand(TyperCommand):
    """A command whose help shows its flags under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_options(self, ctx, formatter)

    def get_short_help_str(self, limit: int = 0) -> str:
        return self.help or ""  # not cut, because the help wraps it

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.options_metavar or ""]  # the help lists arguments with the flags

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, rewritten(args))


class FlagGroup(TyperGroup):
    """Several commands; the help lists them first, and `run` may be left out."""

    commands: Any  # `Commands`

    def format_options(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            named = self.commands.builders.items()
            formatter.write_dl([(name, h) for name, (h, _) in named if _is_listed(name, ctx)])
        _format_options(self, ctx, formatter)

    def get_short_help_str(self, limit: int = 0) -> str:
        return self.help or ""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*(["[FLAGS]"] if self.params else []), self.subcommand_metavar]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = rewritten(args, self.commands)
        return super().parse_args(ctx, with_default_command(args, self))
