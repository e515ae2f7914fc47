"""Values of arguments as text: JSON, Python, or strings between tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mrs.grammar.lark import LarkGrammar
from mrs.tools.properties import (
    in_order,
    is_required,
    items_of,
    optional_list,
    properties_of,
    require_enforced,
)

_CONSTANTS = {"true": True, "false": False, "null": None} | {
    "True": True,
    "False": False,
    "None": None,
}
_SPELLINGS = {"boolean": ("true", "false", "True", "False"), "null": ("null", "None")}
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_BARE_KEY = re.compile(r"[^:{}\[\],\s][^:{}\[\],]*")
_SPACE = re.compile(r"\s*")
_STRINGS = {
    '"': re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL),
    "'": re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL),
}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
#: A string with escapes, in either quotes, as a terminal.
_ANY_STRING = r"""/"([^"\\]|\\.)*"|'([^'\\]|\\.)*'/"""


@dataclass(frozen=True)
class Literals:
    """How values are written: strings in `quote`, between `item` and `colon`.

    Strings in a quote of more than one character have no escapes, and keys then have no quotes.
    """

    quote: str = '"'
    item: str = ", "
    colon: str = ": "
    sorts_keys: bool = False

    @property
    def is_json(self) -> bool:
        return self.quote == '"'

    @property
    def is_token(self) -> bool:
        """Whether strings are between tokens, without escapes."""
        return len(self.quote) > 1

    def rule(self, name: str, schema: Any, lark: LarkGrammar) -> str:
        """The body of a rule for a value of `schema`; further rules begin with `name`."""
        schema = schema if isinstance(schema, Mapping) else {}
        if self.is_json:
            return lark.json(schema, separators=(self.item, self.colon))
        if (several := choices(schema)) is not None:
            return f"({' | '.join(self._constant(each, lark) for each in several)})"
        if (others := alternatives(schema)) is not None:
            bodies = (self.rule(f"{name}_{n}", each, lark) for n, each in enumerate(others))
            return f"({' | '.join(bodies)})"
        kind = schema.get("type")
        if kind in ("integer", "number"):
            return lark.json(schema)
        require_enforced(schema, lark)
        if kind == "array":
            item = self.rule(f"{name}_i", items_of(schema), lark)
            return f'"[" ({item} ({lark.letters(self.item)} {item})*)? "]"'
        if kind == "object" and properties_of(schema):
            return self._object(name, in_order(schema, sorts_keys=self.sorts_keys), lark)
        if kind in _SPELLINGS:
            return spellings(str(kind), lark)
        if kind == "string":
            return self._string(lark)
        return self._any_value(lark) + ("_object" if kind == "object" else "")

    def _any_value(self, lark: LarkGrammar) -> str:
        """The name of a rule for any value; with `_object` at its end, for any object."""
        name = "tokens_value" if self.is_token else "quoted_value"
        if not lark.has_rule(name):
            item, colon = lark.letters(self.item), lark.letters(self.colon)
            key = "/[^:{}\\[\\],]+/" if self.is_token else _ANY_STRING
            scalars = [self._string(lark), lark.json({"type": "number"})]
            scalars += [spellings(kind, lark) for kind in _SPELLINGS]
            lark.rule(f"{name}_list", f'"[" ({name} ({item} {name})*)? "]"')
            lark.rule(f"{name}_pair", f"{key} {colon} {name}")
            lark.rule(f"{name}_object", f'"{{" ({name}_pair ({item} {name}_pair)*)? "}}"')
            lark.rule(name, " | ".join([*scalars, f"{name}_list", f"{name}_object"]))
        return name

    def _string(self, lark: LarkGrammar) -> str:
        if self.is_token:
            return f"{lark.text(self.quote)} {lark.until(self.quote)}"
        return _ANY_STRING

    def _object(self, name: str, schema: Mapping[str, Any], lark: LarkGrammar) -> str:
        properties = properties_of(schema)
        for number, (key, value) in enumerate(properties.items()):
            body = self.rule(f"{name}_{number}_v", value, lark)
            spelled = lark.letters(self._key(key) + self.colon)
            lark.rule(f"{name}_{number}", f"{spelled} {body}")
        required = [is_required(schema, key) for key in properties]
        return f'"{{" ({optional_list(name, required, lark.letters(self.item), lark)}) "}}"'

    def _constant(self, value: Any, lark: LarkGrammar) -> str:
        if isinstance(value, str) and self.is_token:
            quote = lark.text(self.quote)
            return f"{quote} {lark.letters(value)} {quote}"
        if isinstance(value, str):
            return f"{lark.letters(self._quoted(value))} | {lark.letters(json.dumps(value))}"
        if value is None or isinstance(value, bool):
            return f"{lark.letters(str(value))} | {lark.letters(json.dumps(value))}"
        return lark.letters(json.dumps(value, ensure_ascii=False))

    def _quoted(self, text: str) -> str:
        escaped = json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"')
        return self.quote + escaped.replace(self.quote, "\\" + self.quote) + self.quote

    def write(self, value: Any) -> str:
        """The text of a value."""
        if self.is_json:
            return json.dumps(value, ensure_ascii=False, separators=(self.item, self.colon))
        if isinstance(value, str):
            return self.quote + value + self.quote if self.is_token else self._quoted(value)
        if isinstance(value, Mapping):
            keys = sorted(value, key=str.lower) if self.sorts_keys else value
            pairs = (self._key(key) + self.colon + self.write(value[key]) for key in keys)
            return "{" + self.item.join(pairs) + "}"
        if isinstance(value, list):
            return "[" + self.item.join(map(self.write, value)) + "]"
        return json.dumps(value) if self.is_token else str(value)

    def _key(self, key: str) -> str:
        return key if self.is_token else self._quoted(key)

    def read(self, text: str, position: int = 0) -> tuple[Any, int]:
        """The value at a position, in any of the ways to write one, and where it ends.

        Raises ValueError if there is none, or it goes on after the text.
        """
        if self.is_token and text.startswith(self.quote, position):
            start = position + len(self.quote)
            end = text.index(self.quote, start)
            return text[start:end], end + len(self.quote)
        first = text[position : position + 1]
        if first in _STRINGS:
            return _read_string(text, position)
        if first == "{":
            return self._read_object(text, position + 1)
        if first == "[":
            return self._read_list(text, position + 1)
        for spelled, value in _CONSTANTS.items():
            if text.startswith(spelled, position):
                return value, position + len(spelled)
        if number := _NUMBER.match(text, position):
            return json.loads(number[0]), number.end()
        raise ValueError("no value")

    def _read_object(self, text: str, position: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        position = _after_space(text, position)
        while not text.startswith("}", position):
            if text[position : position + 1] in _STRINGS:
                key, position = _read_string(text, position)
            elif match := _BARE_KEY.match(text, position):
                key, position = match[0].strip(), match.end()
            else:
                raise ValueError("no key")
            position = _after(":", text, _after_space(text, position))
            members[key], position = self.read(text, _after_space(text, position))
            position = _next_item("}", text, position)
        return members, position + 1

    def _read_list(self, text: str, position: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        position = _after_space(text, position)
        while not text.startswith("]", position):
            value, position = self.read(text, position)
            items.append(value)
            position = _next_item("]", text, position)
        return items, position + 1


def spellings(kind: str, lark: LarkGrammar) -> str:
    """The constants of a kind in JSON and Python: models write either in either form."""
    return f"({' | '.join(map(lark.letters, _SPELLINGS[kind]))})"


def choices(schema: Mapping[str, Any]) -> Iterable[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    several = schema.get("enum")
    return several if isinstance(several, list) and several else None


def alternatives(schema: Mapping[str, Any]) -> list[Any] | None:
    """The alternatives of a schema, if there are several."""
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return list(schema[key])
    kinds = schema.get("type")
    return [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else None


def _read_string(text: str, position: int) -> tuple[str, int]:
    match = _STRINGS[text[position]].match(text, position)
    if match is None:
        raise ValueError("a string without an end")
    return unescaped(match[1]), match.end()


def unescaped(text: str) -> str:
    """A string of JSON or Python without its escapes."""

    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        return _ESCAPED.get(escape, escape)

    plain = _ESCAPE.sub(character, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _after(mark: str, text: str, position: int) -> int:
    if not text.startswith(mark, position):
        raise ValueError(f"no {mark}")
    return position + len(mark)


def _next_item(closing: str, text: str, position: int) -> int:
    """Where the next item or the closing bracket is."""
    position = _after_space(text, position)
    if text.startswith(closing, position):
        return position
    return _after_space(text, _after(",", text, position))
