"""Arguments in tags: `<parameter=city>`, a line feed, the value, a line feed, `</parameter>`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mrs.grammar.lark import LarkGrammar
from mrs.tools.properties import is_required, properties_of

_CLOSE = "\n</parameter>\n"
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n?", re.DOTALL)


class TaggedArguments:
    """A string is written as it is, any other value as JSON."""

    is_json = False

    def rules(self, name: str, schema: Mapping[str, Any], lark: LarkGrammar) -> None:
        parts = []
        for number, (key, value) in enumerate(properties_of(schema).items()):
            rule = f"{name}_{number}"
            opening = lark.letters(f"<parameter={key}>\n")
            if _is_text(value):
                lark.rule(rule, f"{opening} {lark.until(_CLOSE)}")
            elif _is_choice(value):
                texts = " | ".join(lark.letters(text) for text in value["enum"])
                lark.rule(rule, f"{opening} ({texts}) {lark.text(_CLOSE)}")
            else:
                schema_of_value = value if isinstance(value, Mapping) else {}
                lark.rule(rule, f"{opening} {lark.json(schema_of_value)} {lark.text(_CLOSE)}")
            parts.append(rule if is_required(schema, key) else f"{rule}?")
        lark.rule(name, " ".join(parts) or '""')

    def length(self, text: str, after: str) -> int | None:
        end = text.find(after)
        return None if end < 0 else end

    def read(self, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        if _PARAMETER.sub("", text).strip():
            raise ValueError("not parameters in tags")
        properties = properties_of(schema)
        return {
            key: value if _is_text(properties.get(key)) else _read(value)
            for key, value in _PARAMETER.findall(text)
        }


def _is_choice(schema: Any) -> bool:
    choices = schema.get("enum") if isinstance(schema, Mapping) else None
    return isinstance(choices, list) and all(isinstance(text, str) for text in choices)


def _is_text(schema: Any) -> bool:
    """Whether the value is any string."""
    return isinstance(schema, Mapping) and schema.get("type") == "string" and "enum" not in schema


def _read(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
