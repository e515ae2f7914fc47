"""Arguments as those of a call in Python: `city="Rome", days=3, sunny=True`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mrs.grammar.lark import LarkGrammar
from mrs.tools.json_arguments import JsonEnd
from mrs.tools.properties import is_required, optional_list, properties_of

_KEY = re.compile(r"\s*,?\s*([^=]+?)\s*=\s*")
_CONSTANTS = {"True": True, "False": False, "None": None}


class PythonArguments:
    """Keyword arguments. Values are JSON, but for the three constants of Python."""

    is_json = False

    def rules(self, name: str, schema: Mapping[str, Any], lark: LarkGrammar) -> None:
        for number, (key, value) in enumerate(properties_of(schema).items()):
            lark.rule(f"{name}_{number}", f"{lark.letters(key + '=')} {_value(value, lark)}")
        required = [is_required(schema, key) for key in properties_of(schema)]
        optional_list(name, required, lark.text(", "), lark)

    def length(self, text: str, after: str) -> int | None:
        end = JsonEnd(depth=1).find(text)
        return None if end is None else end - 1

    def read(self, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        position, found = 0, {}
        while match := _KEY.match(text, position):
            found[match[1]], position = _read_value(text, match.end())
        if text[position:].strip():
            raise ValueError("not arguments")
        return found


def _value(schema: Any, lark: LarkGrammar) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "boolean":
        return '("True" | "False")'
    if kind == "null":
        return '"None"'
    return lark.json(schema if isinstance(schema, Mapping) else {})


def _read_value(text: str, position: int) -> tuple[Any, int]:
    for spelled, value in _CONSTANTS.items():
        if text.startswith(spelled, position):
            return value, position + len(spelled)
    return json.JSONDecoder().raw_decode(text, position)
