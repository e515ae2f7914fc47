"""Patterns that a text has to match at once are bounded, since deciding on them takes for ever."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from mrs.errors import UsageError
from mrs.grammar.compiler import check_grammar
from mrs.request import Grammar

PATTERNS: list[dict[str, Any]] = [{"type": "string", "pattern": f".*{i}"} for i in range(14)]
OBJECTS = [{"type": "object", "properties": {"x": each}} for each in PATTERNS]
DEFINED = {f"d{i}": each for i, each in enumerate(PATTERNS)}
SCHEMAS: dict[str, Any] = {
    "one value": {"allOf": PATTERNS},
    "a property": {"allOf": OBJECTS},
    "items": {"allOf": [{"type": "array", "items": each} for each in PATTERNS]},
    "references": {"allOf": [{"$ref": f"#/$defs/{name}"} for name in DEFINED], "$defs": DEFINED},
    "pairs": {"allOf": [{"allOf": PATTERNS[i : i + 2]} for i in range(0, 14, 2)]},
    "a choice": {"anyOf": [{"allOf": PATTERNS}, {"type": "null"}]},
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("kind", ["json_schema", "llguidance"])
def test_many_patterns_for_one_text_are_refused_at_once(kind: Any, schema: Any) -> None:
    form = schema if kind == "json_schema" else {"grammars": [{"json_schema": schema}]}
    start_s = time.process_time()
    with pytest.raises(UsageError, match="more than 8 patterns for one text"):
        check_grammar(Grammar(kind, json.dumps(form)))
    assert time.process_time() - start_s < 0.5


def test_many_terminals_that_are_joined_are_refused() -> None:
    text = "start: A\nA: " + " & ".join(f"/.*{i}/" for i in range(14))
    with pytest.raises(UsageError, match="more than 8 patterns"):
        check_grammar(Grammar("lark", text))


def test_many_patterns_for_many_texts_are_fine() -> None:
    named = {f"p{i}": each for i, each in enumerate(PATTERNS)}
    tree = {"type": "array", "items": {"$ref": "#"}}
    schema = {
        "allOf": [{"type": "object", "properties": {**named, "inside": tree}}],
        "required": ["p0"],
    }
    check_grammar(Grammar("json_schema", json.dumps(schema)))
    check_grammar(Grammar("lark", 'start: "&" "&&&&&&&&&&&&&&&" | "a"'))
