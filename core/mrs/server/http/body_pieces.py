"""Decodes and checks large bodies in many short calls.

A call of msgspec keeps the interpreter until it returns: a request that runs beside it, and needs
the interpreter for each of its tokens, would wait for the whole body. So the places where a body
may be cut are looked up first, all at once, as simdjson does it (Langdale and Lemire, "Parsing
gigabytes of JSON per second", 2019), but with numpy, which lets other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

Body = TypeVar("Body", bound=msgspec.Struct)

#: JSON that one call decodes, and items that it checks: at most about a millisecond.
_PIECE_BYTES, _PIECE_ITEMS = 2**15, 1024
#: Objects and lists inside each other that are cut: without a limit, the work would grow with the
#: square of a body. What is deeper is decoded in one call.
_MOST_DEPTH = 32
_LOOKED_AT_BYTES = 2**18

_QUOTE, _BACKSLASH, _COMMA, _OBJECT, _LIST = b'"\\,{['
_IS_SIGN = np.zeros(256, bool)
_IS_SIGN[list(b'"\\,:{}[]')] = True
#: What a sign adds to the number of open brackets.
_OPENS = np.zeros(256, np.int8)
_OPENS[list(b"{[")], _OPENS[list(b"}]")] = 1, -1


class NotAnObject(Exception):
    """A body is no JSON object."""


def has_more(body: bytes | bytearray, sign: bytes, most: int) -> bool:
    """Whether a body has a byte more than `most` times."""
    count = 0
    for start in range(0, len(body), _LOOKED_AT_BYTES):
        count += body.count(sign, start, start + _LOOKED_AT_BYTES)
        if count > most:
            return True
    return False


def decode_object(body: memoryview) -> dict[str, Any]:
    """The object that a body of JSON is.

    Raises NotAnObject, and as `msgspec.json.decode` does: msgspec.DecodeError, UnicodeDecodeError
    and RecursionError.
    """
    if len(body) <= _PIECE_BYTES:
        value = msgspec.json.decode(body)
    else:
        msgspec.json.decode(body, type=msgspec.Raw)  # it is JSON; nothing is made of it
        signs = _Signs.of(body)
        value = _cut(body, signs, 0) if len(signs.places) and signs.values[0] == _OBJECT else None
    if not isinstance(value, dict):
        raise NotAnObject
    return value


@dataclass(frozen=True)
class _Signs:
    """Brackets, commas and colons of JSON, outside of its strings.

    places   where each is
    values   which it is
    depths   how many brackets are open after it
    """

    places: npt.NDArray[np.uint32]
    values: npt.NDArray[np.uint8]
    depths: npt.NDArray[np.int16]

    @classmethod
    def of(cls, text: memoryview) -> _Signs:
        """All of a text that is valid JSON."""
        found, start, is_string = [], 0, False
        while start < len(text):
            values = np.frombuffer(text[start : _end_of_part(text, start)], np.uint8)
            places = np.flatnonzero(_IS_SIGN[values])
            places = places[~_are_escaped(places, values)]
            signs = values[places]
            is_quote = signs == _QUOTE
            is_inside = (np.cumsum(is_quote) + is_string) % 2 == 1
            is_kept = ~(is_inside | is_quote)
            found.append(((places[is_kept] + start).astype(np.uint32), signs[is_kept]))
            is_string = bool(is_inside[-1]) if len(places) else is_string
            start += len(values)
        all_places, all_signs = (np.concatenate(each) for each in zip(*found, strict=True))
        # msgspec ends at a depth of about a thousand.
        return cls(all_places, all_signs, np.cumsum(_OPENS[all_signs], dtype=np.int16))

    def within(self, start: int, stop: int) -> _Signs:
        return _Signs(self.places[start:stop], self.values[start:stop], self.depths[start:stop])

    def bounds(self) -> npt.NDArray[np.uint32]:
        """Of an object or a list: which signs are its brackets, and the commas between its items.

        Its first bracket is the first sign, and its last one the last.
        """
        is_between = (self.depths == self.depths[0]) & (self.values == _COMMA)
        is_between[0] = is_between[-1] = True
        return np.flatnonzero(is_between).astype(np.uint32)


def _end_of_part(text: memoryview, start: int) -> int:
    """Where to cut a text to look at it: not after a backslash that escapes the next byte."""
    stop = start + _LOOKED_AT_BYTES
    part = bytes(text[start:stop])
    return stop + (len(part) - len(part.rstrip(b"\\"))) % 2


def _are_escaped(
    places: npt.NDArray[np.intp], values: npt.NDArray[np.uint8]
) -> npt.NDArray[np.bool_]:
    """Whether each of the signs is a backslash, or stands after one that is not escaped itself."""
    is_slash: npt.NDArray[np.bool_] = values[places] == _BACKSLASH
    slashes = places[is_slash]
    if not len(slashes):
        return is_slash
    order = np.arange(len(slashes))
    first_of_run = np.maximum.accumulate(np.where(np.diff(slashes, prepend=-2) > 1, order, 0))
    is_escaped = np.zeros(len(values) + 1, bool)
    is_escaped[slashes[(order - first_of_run) % 2 == 0] + 1] = True
    return np.logical_or(is_slash, is_escaped[places])


def _cut(text: memoryview, signs: _Signs, depth: int) -> Any:
    """The object or the list that has these signs, in an outer one of the text or alone."""
    if depth == _MOST_DEPTH:
        return msgspec.json.decode(text[signs.places[0] : signs.places[-1] + 1])
    keys = signs.values[0] == _OBJECT
    made: Any = {} if keys else []
    frame = b"{%b}" if keys else b"[%b]"
    bounds = signs.bounds()
    places = signs.places[bounds]
    for first, last in _groups(places):
        start, stop = int(places[first]) + 1, int(places[last])
        if stop - start <= _PIECE_BYTES:
            some = msgspec.json.decode(frame % bytes(text[start:stop]))
            made.update(some) if keys else made.extend(some)
            continue
        inner = signs.within(int(bounds[first]) + 1, int(bounds[last]))
        if keys:
            key = msgspec.json.decode(text[start : inner.places[0]])
            start, inner = int(inner.places[0]) + 1, inner.within(1, len(inner.places))
        has_items = len(inner.places) and inner.values[0] in (_OBJECT, _LIST)
        value = _cut(text, inner, depth + 1) if has_items else msgspec.json.decode(text[start:stop])
        if keys:
            made[key] = value
        else:
            made.append(value)
    return made


def _groups(places: npt.NDArray[np.uint32]) -> Iterator[tuple[int, int]]:
    """Between which of the bounds of items some are decoded together: few bytes, or one item."""
    first = 0
    while first < len(places) - 1:
        most = int(places[first]) + _PIECE_BYTES
        last = int(np.searchsorted(places, most, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last


def convert_object(given: dict[str, Any], body_type: type[Body], *, is_form: bool = False) -> Body:
    """As `msgspec.convert` does; long lists in fields of the request are converted in pieces.

    In a form, numbers are texts.

    Raises msgspec.ValidationError.
    """
    fields, ready = fields_of(body_type), dict(given)
    for name, value in given.items():
        if isinstance(value, list) and len(value) > _PIECE_ITEMS and name in fields:
            ready[name] = _converted(value, fields[name].type, name)
    return msgspec.convert(ready, body_type, strict=not is_form)


def _converted(items: list[Any], kind: Any, name: str) -> list[Any]:
    """The items of a list, each of them converted. Raises msgspec.ValidationError."""
    converted: list[Any] = []
    for start in range(0, len(items), _PIECE_ITEMS):
        try:
            converted += msgspec.convert(items[start : start + _PIECE_ITEMS], kind)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$[")
            index, _, inside = path.partition("]")
            place = f"[{start + int(index)}]{inside.rstrip('`')}" if path else ""
            raise msgspec.ValidationError(f"{message} - at `$.{name}{place}`") from None
    return converted


@cache
def fields_of(body_type: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """The fields of a request by their names in JSON: to find them out takes a millisecond."""
    return {each.encode_name: each for each in msgspec.structs.fields(body_type)}
