"""Types of fields: what values they accept, and how error messages describe these values."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Rational, Real
from typing import Any, Protocol

from mrs.errors import UsageError

_LARGEST = sys.float_info.max


class FieldType(Protocol):
    """What values a field accepts; `wording` describes them in error messages."""

    @property
    def wording(self) -> str: ...
    def accepts(self, value: Any) -> bool: ...


@dataclass(frozen=True)
class Number:
    """A finite number from `low` to `high`; `above` excludes `low` itself."""

    low: float = 0
    high: float = math.inf
    above: bool = False
    whole: bool = False

    @property
    def wording(self) -> str:
        start = f"above {self.low:g}" if self.above else f"from {self.low:g}"
        high = str(self.high) if self.whole else f"{self.high:g}"
        end = f" to {high}" if self.high < math.inf else "" if self.above else " up"
        return f"{'a whole number' if self.whole else 'a number'} {start}{end}"

    def accepts(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        number: Any = value if isinstance(value, Rational) else float(value)
        if not -_LARGEST <= number <= _LARGEST or (self.above and number == self.low):
            return False
        return bool(self.low <= number <= self.high)


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


def quoted(value: Any) -> str:
    """A value as error messages show it: its repr, shortened to 60 characters."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the repr of a caller's object may raise anything
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"
