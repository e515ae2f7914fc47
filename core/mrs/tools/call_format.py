"""How the models of a family write calls of tools: the texts around names and arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mrs.grammar.lark import LarkGrammar


class Arguments(Protocol):
    """How the arguments of a call are written."""

    @property
    def is_json(self) -> bool:
        """Whether they are JSON, which can be passed on while it arrives."""

    def rules(self, name: str, schema: Mapping[str, Any], lark: LarkGrammar) -> None:
        """Add Lark rules, of which `name` is for the arguments of a tool with this schema."""

    def length(self, text: str, after: str) -> int | None:
        """How many characters of `text` are the arguments, before `after`; None if it goes on."""

    def read(self, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments in a text that follows the rules. Raises ValueError for another one."""


@dataclass(frozen=True)
class CallFormat:
    """One or more calls are `begin`, then each call, with `separator` between them, then `end`.

    A call is `before`, the tool's name, `between`, its arguments, `after`. `is_in` says whether a
    chat template has this format. Formats without `is_parallel` have one call in a reply. With
    `is_at_start` a call is the whole reply. `read_before` and `read_between` stand for `before` and
    `between` in the decoded text, if these are other ones.
    """

    name: str
    is_in: Callable[[str], bool]
    arguments: Arguments
    before: str
    between: str
    after: str = ""
    begin: str = ""
    separator: str = ""
    end: str = ""
    is_parallel: bool = True
    is_at_start: bool = False
    read_before: str = ""
    read_between: str = ""
