"""What a template may spend: the sizes of what its operators, filters and methods build."""

from __future__ import annotations

import re
import time
from typing import Any

_LEAST_CHARACTERS = 4 * 1024**2
_CHARACTERS_PER_INPUT_CHARACTER = 64
_SECONDS = 10.0
_STEP_CHARACTERS = 64
_NUMBER = re.compile(r"\d+")
_PADDING_METHODS = frozenset(("ljust", "rjust", "center", "zfill"))
_GROWING_FILTERS = frozenset(("indent", "center", "wordwrap", "batch", "slice", "tojson"))
_DEEP_FILTERS = frozenset(("tojson", "string", "pprint", "xmlattr", "urlencode", "sum"))


class TooMuchWork(Exception):
    """A template went over what a sane one needs."""


class Meter:
    """A budget of characters, and a deadline.

    The sizes are upper bounds in characters of text or items of lists, reckoned before anything
    is built. What a sane template spends grows with the conversation, so the budget does too.
    """

    def __init__(self, input_characters: int = 0) -> None:
        self._left = _LEAST_CHARACTERS + _CHARACTERS_PER_INPUT_CHARACTER * input_characters
        self._deadline = time.monotonic() + _SECONDS

    def spend(self, characters: int) -> None:
        """Take one step and `characters` from the budget; TooMuchWork if they are not there."""
        self._left -= characters + _STEP_CHARACTERS
        if self._left < 0:
            raise TooMuchWork("the template builds far more text than it was given")
        if time.monotonic() > self._deadline:
            raise TooMuchWork(f"the template takes longer than {_SECONDS:.0f} s")

    def weight(self, value: Any) -> int:
        """About the length of `str(value)`; a part that it holds twice counts twice."""
        if isinstance(value, str):
            return len(value)
        rest, weight = [value], 0
        while rest and weight <= self._left:
            item = rest.pop()
            weight += 4
            if isinstance(item, str):
                weight += len(item)
            elif isinstance(item, dict):
                rest += (*item.keys(), *item.values())
            elif isinstance(item, list | tuple):
                rest += item
            elif isinstance(item, int):
                weight += item.bit_length() // 3
        return weight

    def operator(self, name: str, left: Any, right: Any) -> int:
        if name == "+":
            return size(left) + size(right)
        if name == "*":
            return max(_repeated(left, right), _repeated(right, left))
        if name == "**" and isinstance(left, int) and isinstance(right, int):
            return left.bit_length() * abs(right)
        return self.formatted(left, right) if name == "%" and isinstance(left, str) else 0

    def formatted(self, pattern: str, values: Any) -> int:
        """Of `pattern` filled with `values`, whichever way: with the widths that it names."""
        values = values if isinstance(values, list | tuple) else [values]
        widths = sum(int(number[:12]) for number in _NUMBER.findall(pattern))
        if "*" in pattern or "{" in pattern:
            widths += sum(abs(value) for value in values if isinstance(value, int))
        weights = [self.weight(value) for value in values]
        uses = pattern.count("{") + pattern.count("%")
        return len(pattern) + widths + sum(weights) + uses * max(weights, default=0)

    def method(self, text: str, name: str, args: list[Any]) -> int:
        """Of the string method `name` of `text`."""
        if name == "replace" and len(args) >= 2:
            return _replaced(text, args[0], args[1])
        if name == "join" and args:
            return self.weight(args[0]) + len(text) * size(args[0])
        if name == "translate" and args:
            return len(text) * self.weight(args[0])
        numbers = sum(abs(arg) for arg in args if isinstance(arg, int))
        if name in _PADDING_METHODS:
            return len(text) + numbers
        return len(text) * (1 + numbers) if name == "expandtabs" else len(text)

    def filter(self, name: str, value: Any, args: list[Any]) -> int:
        """Of the filter `name` applied to `value`."""
        if name == "replace" and len(args) >= 2 and isinstance(value, str):
            return _replaced(value, args[0], args[1])
        if name == "join":
            return self.weight(value) + size(args[0] if args else "") * size(value)
        if name == "format" and isinstance(value, str):
            return self.formatted(value, args)
        characters = self.weight(value) if name in _DEEP_FILTERS else size(value)
        if name in _GROWING_FILTERS:
            return (1 + characters) * (1 + sum(abs(arg) for arg in args if isinstance(arg, int)))
        return characters


def size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def _repeated(value: Any, times: Any) -> int:
    if not isinstance(times, int):
        return 0
    if isinstance(value, int):
        return value.bit_length() + times.bit_length()
    return size(value) * max(times, 0)


def _replaced(text: str, old: Any, new: Any) -> int:
    if not (isinstance(old, str) and isinstance(new, str)):
        return len(text)
    return len(text) + text.count(old) * len(new)
