"""From the fields `grammar` and `response_format` of a request to a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mrs.errors import UsageError
from mrs.request import Grammar

_KINDS = ("regex", "json_schema", "lark", "llguidance")


def grammar_of(kind: Any, value: Any) -> Grammar:
    """The grammar of a type and a value, which for JSON may be an object. Raises UsageError."""
    if kind not in _KINDS:
        names = f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}"
        raise UsageError("the type of the grammar is unknown", hint=f"give {names}")
    if isinstance(value, Mapping) and kind in ("json_schema", "llguidance"):
        value = json.dumps(value)
    if not isinstance(value, str):
        raise UsageError("the grammar is not a string", hint="give its text")
    return Grammar(kind, value)


def grammar_of_response_format(value: Any) -> Grammar | None:
    """The grammar of a `response_format`; None for one that allows any text. Raises UsageError."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = value.get("schema")  # as llama.cpp, Together and Fireworks have it
        if schema is None:
            return Grammar("json_object")
        if not isinstance(schema, Mapping):
            raise UsageError(
                "the schema of response_format is no object", hint="give a JSON schema"
            )
        return Grammar("json_schema", json.dumps(schema))
    if kind != "json_schema":
        raise UsageError(
            "the type of response_format is unknown", hint="give text, json_object or json_schema"
        )
    schema = value.get("json_schema")
    if isinstance(schema, Mapping) and isinstance(schema.get("schema"), Mapping):
        return Grammar("json_schema", json.dumps(schema["schema"]))
    raise UsageError(
        "response_format lacks its schema", hint='{"json_schema": {"name": …, "schema": {…}}}'
    )
