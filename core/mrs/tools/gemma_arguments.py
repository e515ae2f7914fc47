"""Arguments as Gemma writes them: `{city:<escape>Rome<escape>,days:3}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mrs.grammar.lark import LarkGrammar
from mrs.tools.properties import is_required, optional_list, properties_of

_KEY = re.compile(r"\s*,?\s*([^:{}\[\],]+):")
_PLAIN = re.compile(r"[^,\]}]*")


@dataclass(frozen=True)
class GemmaArguments:
    """An object without quotes around keys; strings are between two `quote` tokens."""

    quote: str
    is_json = False

    def rules(self, name: str, schema: Mapping[str, Any], lark: LarkGrammar) -> None:
        self._object(name, schema, lark)

    def _object(self, name: str, schema: Mapping[str, Any], lark: LarkGrammar) -> None:
        properties = properties_of(schema)
        for number, (key, value) in enumerate(properties.items()):
            body = self._value(f"{name}_{number}_v", value, lark)
            lark.rule(f"{name}_{number}", f"{lark.letters(key + ':')} {body}")
        required = [is_required(schema, key) for key in properties]
        optional_list(f"{name}", required, lark.text(","), lark)

    def _value(self, name: str, schema: Any, lark: LarkGrammar) -> str:
        schema = schema if isinstance(schema, Mapping) else {}
        kind, choices = schema.get("type"), schema.get("enum")
        quote = lark.text(self.quote)
        if isinstance(choices, list) and all(isinstance(each, str) for each in choices):
            return f"{quote} ({' | '.join(map(lark.letters, choices))}) {quote}"
        if kind == "array":
            item = self._value(f"{name}_i", schema.get("items"), lark)
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind == "object" and properties_of(schema):
            self._object(name, schema, lark)
            return f'"{{" {name} "}}"'
        if kind in ("integer", "number", "boolean", "null"):
            return lark.json(schema)
        return f"{quote} {lark.until(self.quote)}"

    def length(self, text: str, after: str) -> int | None:
        end = text.find(after)
        return None if end < 0 else end

    def read(self, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        found, position = self._read_object(text, 0)
        if text[position:].strip():
            raise ValueError("not arguments")
        return found

    def _read_object(self, text: str, position: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while match := _KEY.match(text, position):
            found[match[1].strip()], position = self._read_value(text, match.end())
        return found, position

    def _read_value(self, text: str, position: int) -> tuple[Any, int]:
        if text.startswith(self.quote, position):
            start = position + len(self.quote)
            end = text.index(self.quote, start)
            return text[start:end], end + len(self.quote)
        if text.startswith("{", position):
            found, position = self._read_object(text, position + 1)
            return found, position + 1
        if text.startswith("[", position):
            return self._read_list(text, position + 1)
        match = _PLAIN.match(text, position)
        assert match is not None
        return json.loads(match[0]), match.end()

    def _read_list(self, text: str, position: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while not text.startswith("]", position):
            if position >= len(text):
                raise ValueError("a list without an end")
            value, position = self._read_value(text, position)
            items.append(value)
            position += text.startswith(",", position)
        return items, position + 1
