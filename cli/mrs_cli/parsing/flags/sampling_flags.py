"""Flags that say how the tokens of a reply are chosen."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

from mrs.request import RunRequest
from mrs.request.sampling import SETTINGS
from mrs.request.setting_kinds import Number
from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import USUAL, sampling_option, setting_option
from mrs_cli.parsing.flags.prompt_flags import PromptFlags

Group = TypeVar("Group")

#: Settings that the short help lists.
_USUAL = ("temperature", "max_tokens")


def _with_settings(group: type[Group]) -> type[Group]:
    """Gives a group a flag for each setting but those of a whole run, which are flags of it."""
    of_runs = {field.name for field in fields(RunRequest)}
    flags = {name: _flag_type(name) for name in SETTINGS if name not in of_runs}
    group.__annotations__ = {**flags, **group.__annotations__}
    for name in flags:
        setattr(group, name, None)
    return group


def _flag_type(name: str) -> Any:
    kind, option = SETTINGS[name].kind, setting_option(name)
    if isinstance(kind, Number):
        value = (int if kind.whole else float) | None
        return Annotated[value, option, USUAL] if name in _USUAL else Annotated[value, option]
    return Annotated[list[str] | None, option]


@dataclass(init=False, eq=False, repr=False)
@_with_settings
class SamplingFlags(Flags):
    """Settings of the sampler; these flags go before or after the selector."""

    adapter: Annotated[
        str | None,
        sampling_option(
            "--adapter",
            metavar="NAME",
            help="Use the adapter of this name, which --lora loads.",
            show_default="the model without one",
        ),
    ] = None
    grammar: Annotated[
        str | None,
        sampling_option(
            "--grammar",
            metavar="KIND:TEXT",
            help="Let replies match a grammar: regex:TEXT, lark:TEXT, gbnf:TEXT, "
            "json_schema:TEXT, json_object (any JSON object), or the path of a .lark, .gbnf or "
            ".json file.",
        ),
    ] = None
    json_schema: Annotated[
        str | None,
        sampling_option(
            "--json-schema",
            metavar="FILE",
            help="Let replies be JSON that matches the schema in FILE.",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class AskFlags(SamplingFlags, PromptFlags):
    """What to ask, and how to choose the reply's tokens."""
