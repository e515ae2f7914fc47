"""How many patterns one text has to match at once, in schemas and grammars of strangers.

llguidance decides whether any text matches them all in time and memory that grow tenfold with every
two of them, whatever its limits: sixteen take 3 s and 286 MiB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

#: Twelve take 0.03 s.
MOST_AT_ONCE = 8
#: Parts of a schema that are looked at; many references may lead to the same one.
_MOST_PARTS = 100_000
_DEEPEST = 200
_PATTERN = re.compile(r'"(?:pattern|format)"\s*:')

#: What the value at each place in an instance has to match: how many patterns.
_Counts = dict[tuple[str, ...], int]
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')


class _TooManyParts(Exception):
    """The schema cannot be judged within the limits."""


def in_lark(text: str) -> int:
    """The most patterns that a rule of a grammar in Lark's form can join by `&`."""
    return 1 + max((line.count("&") for line in _LITERAL.sub("", text).split("\n")), default=0)


def in_schema(text: str) -> int:
    """The most patterns that a JSON schema has for one value; more than allowed if it is unclear.

    Only a schema with many patterns that joins some is looked at. Raises ValueError.
    """
    if '"allOf"' not in text or len(_PATTERN.findall(text)) <= MOST_AT_ONCE:
        return 1
    schema = json.loads(text)
    try:
        return max(_Schema(schema).counts(schema, (), frozenset(), 0).values(), default=0)
    except _TooManyParts:
        return MOST_AT_ONCE + 1


class _Schema:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._parts = 0

    def counts(
        self, part: Any, place: tuple[str, ...], followed: frozenset[str], depth: int
    ) -> _Counts:
        """Those of a part of the schema, for the values from `place` on.

        References that were `followed` on the way are not followed again.
        """
        self._parts += 1
        if self._parts > _MOST_PARTS or depth > _DEEPEST:
            raise _TooManyParts
        if not isinstance(part, Mapping):
            return {}
        total: _Counts = {place: 1} if "pattern" in part or "format" in part else {}
        for each in _list(part.get("allOf")):
            _add(total, self.counts(each, place, followed, depth + 1))
        if isinstance(address := part.get("$ref"), str) and address not in followed:
            there = self._at(address)
            _add(total, self.counts(there, place, followed | {address}, depth + 1))
        for name in ("anyOf", "oneOf"):
            either: _Counts = {}
            for each in _list(part.get(name)):
                for where, count in self.counts(each, place, followed, depth + 1).items():
                    either[where] = max(count, either.get(where, 0))
            _add(total, either)
        for inner, name in _children(part):
            _add(total, self.counts(inner, (*place, name), followed, depth + 1))
        return total

    def _at(self, address: str) -> Any:
        part = self._root
        for word in address.removeprefix("#").split("/")[1:20]:
            part = part.get(word) if isinstance(part, Mapping) else None
        return part


def _add(counts: _Counts, more: _Counts) -> None:
    for where, count in more.items():
        counts[where] = counts.get(where, 0) + count


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _children(part: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """The schemas of the values inside a value, each with a name of its place."""
    properties = part.get("properties")
    inner = (
        [(each, f".{name}") for name, each in properties.items()]
        if isinstance(properties, Mapping)
        else []
    )
    inner += [(part[name], name) for name in ("items", "additionalProperties") if name in part]
    return inner + [(each, f"[{n}]") for n, each in enumerate(_list(part.get("prefixItems")))]
