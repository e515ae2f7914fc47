"""Flags that may be given in two places."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

Flags = TypeVar("Flags")


def merged(outer: Flags, inner: object) -> Flags:
    """`outer` with every flag that was given in `inner`, which is nearer to the end of the line.

    Values of flags that may be given several times add up.
    """
    given = {}
    for each in fields(inner):  # type: ignore[arg-type]
        if (value := getattr(inner, each.name)) != each.default:
            is_list = isinstance(value, list)
            given[each.name] = [*(getattr(outer, each.name) or ()), *value] if is_list else value
    return replace(outer, **given)  # type: ignore[type-var]
