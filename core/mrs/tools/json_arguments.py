"""Arguments as a JSON object, the form of most families."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mrs.grammar.lark import LarkGrammar
from mrs.tools.properties import in_order


@dataclass(frozen=True)
class JsonArguments:
    """An object that matches the tool's schema, with these separators; None for any white space."""

    separators: tuple[str, str] | None = (", ", ": ")
    sorts_keys: bool = False
    is_json = True
    marks = ()

    def rules(self, name: str, schema: Mapping[str, Any], lark: LarkGrammar) -> None:
        ordered = in_order(schema, sorts_keys=self.sorts_keys)
        lark.rule(name, lark.json(ordered, separators=self.separators))

    def length(self, text: str, after: str) -> int | None:
        return JsonEnd().find(text)

    def read(self, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(text)
        return read

    def write(self, arguments: Mapping[str, Any]) -> str:
        return json.dumps(
            arguments,
            ensure_ascii=False,
            separators=self.separators,
            sort_keys=self.sorts_keys,
        )


class JsonEnd:
    """Finds the last bracket of JSON in a text that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
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
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return position + 1
        return None
