"""Arguments as a JSON object, the form of most families."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mrs.grammar.lark import LarkGrammar


class JsonArguments:
    """An object that matches the tool's schema."""

    is_json = True

    def rules(self, name: str, schema: Mapping[str, Any], lark: LarkGrammar) -> None:
        lark.rule(name, lark.json(schema))

    def length(self, text: str, after: str) -> int | None:
        return JsonEnd().find(text)

    def read(self, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(text)
        return read


class JsonEnd:
    """Finds the last bracket of JSON in a text that arrives in pieces, after `depth` others."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._is_string = self._is_escaped = False

    def find(self, text: str) -> int | None:
        """How many characters of `text` belong to the object, or None if it goes on."""
        for position, character in enumerate(text):
            if self._is_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._is_string = False
            elif character == '"':
                self._is_string = True
            elif character in "{[(":
                self._depth += 1
            elif character in "}])":
                self._depth -= 1
                if self._depth <= 0:
                    return position + 1
        return None
