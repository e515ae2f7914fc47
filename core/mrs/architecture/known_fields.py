"""What a path computes of a spec: the fields that it names, and every other one at its default.

A new field of a spec is then unknown to all paths that do not name it. A fast path leaves such a
layer to the operations one by one, which read every field; a path that is the only one refuses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from mrs.errors import Unsupported

#: The names of the fields that a path computes, with spaces between them, by the name of the spec's
#: class.
Known = Mapping[str, str]


def unknown_fields(spec: object, known: Known, apart: Collection[str] = ()) -> Iterator[str]:
    """The settings of a frozen spec, and of the specs in its known fields, that are not `known`.

    A class that is not `known` is one such setting, by its name. Fields without a default are
    always set. The specs in the known fields `apart` are not looked at.
    """
    kind = type(spec).__name__
    if kind not in known:
        yield kind
        return
    names = _split(known[kind])
    for each in fields(spec):  # type: ignore[arg-type]
        value = getattr(spec, each.name)
        if each.name not in names:
            if _is_set(each, value):
                yield each.name
        elif each.name not in apart:
            parts = value if isinstance(value, tuple) else (value,)
            for part in filter(is_dataclass, parts):
                yield from unknown_fields(part, known)


def uses_only(spec: object, known: Known, apart: Collection[str] = ()) -> bool:
    """Whether nothing of a spec is unknown."""
    return next(unknown_fields(spec, known, apart), None) is None


def require_only(
    spec: object, known: Known, what: str, *, apart: Collection[str] = (), hint: str = ""
) -> None:
    """Raise Unsupported, with the field's name, if something of a spec is unknown to `what`."""
    for name in unknown_fields(spec, known, apart):
        raise Unsupported(f"{what} cannot compute {name!r}", hint=hint)


def _is_set(field: Field[Any], value: object) -> bool:
    if field.default is not MISSING:
        return bool(value != field.default)
    if field.default_factory is not MISSING:
        return bool(value != field.default_factory())
    return True


@cache
def _split(names: str) -> frozenset[str]:
    return frozenset(names.split())
