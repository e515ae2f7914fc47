"""How the models of a family write calls of tools: the texts around names and arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

from mrs.grammar.lark import LarkGrammar
from mrs.tools.atoms import common_start


class Arguments(Protocol):
    """How the arguments of a call are written."""

    @property
    def is_json(self) -> bool:
        """Whether they are JSON, which can be passed on while it arrives."""

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts around keys and values."""

    def rules(self, name: str, schema: Mapping[str, Any], lark: LarkGrammar) -> None:
        """Add Lark rules, of which `name` is for the arguments of a tool with this schema."""

    def length(self, text: str, after: str) -> int | None:
        """How many characters of `text` are the arguments, before `after`; None if it goes on."""

    def read(self, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments in a text that follows the rules. Raises ValueError for another one."""

    def write(self, arguments: Mapping[str, Any]) -> str:
        """The text of arguments."""


class Hole(Enum):
    """What differs between calls: a tool's name, its arguments, the call's id or its number."""

    NAME = "name"
    ARGUMENTS = "arguments"
    ID = "id"
    NUMBER = "number"


#: A text, a hole, or parts that a call may have or lack.
Part: TypeAlias = "str | Hole | tuple[Part, ...]"
Parts: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True)
class CallFormat:
    """Calls in a reply: `first`, then `following` for each later one, then `closing`.

    `first` and `following` begin with a text; `following` begins right after the holes of the call
    before, and is empty if a reply has one call only. With `is_at_start` a call is at the start of
    the reply; otherwise text may come before it.

    answer      is before the text of a reply that calls nothing, and `answer_end` may be after it
    lead        may be before a call at the start of a reply
    decoded     stands for `first` in the decoded text, if that is another one
    id_form     the id of a call by its {name} and {number}; without it, what stands in the hole for
                it, or a new one
    is_shown    whether the template writes the calls of earlier messages
    lost        kinds of texts that the template does not write in a way that can be read back;
                replies are held by a grammar, where every text can be
    """

    name: str
    first: Parts
    closing: str
    arguments: Arguments
    following: Parts = ()
    is_at_start: bool = False
    answer: str = ""
    answer_end: str = ""
    lead: str = ""
    decoded: Parts = ()
    id_form: str = ""
    is_shown: bool = True
    lost: tuple[str, ...] = ()

    @property
    def is_parallel(self) -> bool:
        return bool(self.following)

    @property
    def opening(self) -> str:
        """The text before the first hole."""
        return first_text(self.first)

    @property
    def joint(self) -> str:
        """The text between the last hole of a call and the next one's first hole."""
        return first_text(self.following)

    @property
    def after(self) -> str:
        """The text that follows the last hole of each call."""
        return common_start(self.joint, self.closing) if self.following else self.closing

    @property
    def marks(self) -> tuple[str, ...]:
        """All texts around names and arguments."""
        texts = (*_texts(self.first), *_texts(self.following), self.closing, self.answer)
        return texts + self.arguments.marks

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any] | str]]) -> str:
        """The text of calls by name and arguments, without what may be left out.

        Arguments that are a text are written as they are.
        """
        texts = []
        for number, (name, given) in enumerate(calls):
            arguments = given if isinstance(given, str) else self.arguments.write(given)
            holes = {
                Hole.NAME: name,
                Hole.ARGUMENTS: arguments,
                Hole.NUMBER: str(number),
                Hole.ID: f"call{number:05}",
            }
            parts = self.following if number else self.first
            texts += [holes[part] if isinstance(part, Hole) else part
                      for part in parts if not isinstance(part, tuple)]  # fmt: skip
        return "".join([*texts, self.closing])


def first_text(parts: Parts) -> str:
    """The first text in parts of a call that no other part replaces."""
    return next((part for part in parts if isinstance(part, str)), "")


def _texts(parts: Parts) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, tuple):
            yield from _texts(part)
