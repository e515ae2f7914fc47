"""Fields in the objects of a request that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

#: What fields have that ask for nothing; images are of high detail always.
_EMPTY: tuple[Any, ...] = (None, "", [], {}, False, "auto", "high")


def unread_fields(given: Any, read: Any, where: str) -> Iterator[str]:
    """The names of fields of `given`, a value of JSON, that have no effect on what was `read`.

    These are unknown ones, those that the class of an object lists as `without_effect`, and whole
    objects if their class `has_no_effect`. Empty fields are passed over. `where` names `given`.
    """
    if isinstance(read, list) and isinstance(given, list):
        if set(map(type, given)).isdisjoint((dict, list)):
            return  # long lists of numbers take little time
        for index, each in enumerate(given):
            if isinstance(each, (dict, list)):
                yield from unread_fields(each, read[index], f"{where}[{index}]")
    elif isinstance(read, msgspec.Struct) and isinstance(given, dict):
        if getattr(read, "has_no_effect", False):
            yield where
            return
        names = _fields(type(read))
        for key, value in given.items():
            if key in names:
                yield from unread_fields(value, getattr(read, names[key]), f"{where}.{key}")
            elif key != read.__struct_config__.tag_field and value not in _EMPTY:
                yield f"{where}.{key}"


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The attributes with an effect, by their names in JSON."""
    without = getattr(kind, "without_effect", ())
    fields = msgspec.structs.fields(kind)
    return {each.encode_name: each.name for each in fields if each.name not in without}
