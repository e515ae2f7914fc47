"""Types of fields: what values they accept, and how error messages describe these values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mrs.errors import UsageError
from mrs.request.setting_kinds import quoted


class FieldType(Protocol):
    """What values a field accepts; `wording` describes them in error messages."""

    @property
    def wording(self) -> str: ...
    def accepts(self, value: Any) -> bool: ...


@dataclass(frozen=True)
class Allowed:
    """Values for which the function `accepts` returns True."""

    wording: str
    accepts: Callable[[Any], bool]


def one_of(*values: object) -> Allowed:
    """One of some strings or constants."""
    names = [each if isinstance(each, str) else str(each) for each in values]
    return Allowed(f"{', '.join(names[:-1])} or {names[-1]}", lambda value: value in values)


def of_type(wording: str, *types: type) -> Allowed:
    """An instance of one of `types`."""
    return Allowed(wording, lambda value: isinstance(value, types))


def require(name: str, value: Any, field_type: FieldType) -> None:
    """Raise UsageError unless the field `name` accepts `value`."""
    if not field_type.accepts(value):
        raise UsageError(f"{name} is {quoted(value)}", hint=f"give {field_type.wording}")
