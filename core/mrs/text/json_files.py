"""JSON settings files of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mrs.errors import NotReadable
from mrs.source.folder import parse_json


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The JSON object in `text`. Raises NotReadable, with `where`, for anything else."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise NotReadable(f"not valid JSON: {error}", where=where) from error
    if not isinstance(value, dict):
        raise NotReadable("not a JSON object", where=where)
    return value


def read_object(read_text: Callable[[str], str | None], name: str) -> dict[str, Any]:
    """The JSON object in a model's file; empty if the model has no such file."""
    text = read_text(name)
    return {} if text is None else parse_object(text, name)
