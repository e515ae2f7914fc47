"""Replies at temperature 1 validate against their JSON schema; others are refused by name."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from asking import ask

from mrs.errors import MrsError, Unsupported, UsageError
from mrs.request import Grammar
from mrs.run.loaded_model import LoadedModel
from support.suites import first

CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}
SMALL = {"type": "integer", "minimum": -99, "maximum": 99}
POINT = {**CLOSED, "properties": {"x": SMALL, "y": SMALL}, "required": ["x", "y"]}
LINK = {
    **CLOSED,
    "properties": {
        "value": {"type": "boolean"},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
}
SCHEMAS: dict[str, Any] = {
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "types": {"type": ["boolean", "null"]},
    "enum": {"enum": ["red", 5, None, {"a": [True]}]},
    "const": {"const": {"deep": [1, "two", False]}},
    "integer": {"type": "integer", "minimum": -20, "maximum": 300},
    "exclusive": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 12},
    "number": {"type": "number", "minimum": 0, "maximum": 1},
    "multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    "length": {"type": "string", "minLength": 2, "maxLength": 6},
    "pattern": {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$", "maxLength": 10},
    "date": {"type": "string", "format": "date"},
    "typed enum": {"type": "string", "enum": ["red", 5, None]},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"enum": ["a", "b"]}],
        "items": False,
        "minItems": 2,
    },
    "object": POINT,
    "optional": {**POINT, "required": ["x"]},
    "nested": {**CLOSED, "properties": {"from": POINT, "to": POINT}, "required": ["from", "to"]},
    "map": {
        "type": "object",
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 2,
    },
    "any of": {"anyOf": [POINT, {"type": "boolean"}]},
    "one of": {"oneOf": [{"type": "integer", "maximum": 9}, {"type": "boolean"}]},
    "all of": {"allOf": [{"type": "integer"}, {"minimum": 5}, {"maximum": 50}]},
    "ref": {"$defs": {"p": POINT}, "type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2},
    "recursive": LINK,
    "siblings": {
        "$defs": {"n": SMALL},
        "$ref": "#/$defs/n",
        "minimum": 7,
        "maximum": 70,
    },
    "nullable": {**CLOSED, "properties": {"a": {"type": ["boolean", "null"]}}, "required": ["a"]},
    "quotes": {"enum": ['say "hi"', "back\\slash", "new\nline", "caf\u00e9 \u2603"]},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^k[0-9]$": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
}


@pytest.mark.parametrize("name", first(15, SCHEMAS))
def test_a_reply_validates(model: LoadedModel, name: str) -> None:
    """Which replies end before the limit depends on the processor."""
    schema = SCHEMAS[name]
    finished = 0
    for seed in range(12):
        text, end = ask(
            model, Grammar("json_schema", json.dumps(schema)), seed=seed, max_tokens=500
        )
        if end.reason == "stop":
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
            finished += 1
        if finished and seed >= 2:
            break
    assert finished


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"not": {"type": "string"}}, "keywords that cannot be enforced: not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"type": "string"}}, "contains"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"if": {}, "then": {}}, "if"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "cannot be enforced: oneOf"),
        ({"type": "string", "format": "bird"}, "a format that cannot be enforced: bird"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "not"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(
    model: LoadedModel, schema: dict[str, Any], name: str
) -> None:
    with pytest.raises(Unsupported, match=name):
        ask(model, Grammar("json_schema", json.dumps(schema)))


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar("json_schema", "{"), "the JSON schema is not valid: EOF"),
        (Grammar("json_schema", "[]"), "the JSON schema is not valid"),
        (Grammar("json_schema", '{"type": "bird"}'), "Invalid type: bird"),
        (Grammar("json_schema", '{"$ref": "#"}'), "no text can follow it"),
        (Grammar("json_schema", '{"$ref": "http://a.b/c"}'), "does not fetch"),
        (Grammar("regex", "(a"), "the regular expression is not valid: unclosed group"),
        (Grammar("regex", "(?=a)b"), "look-ahead"),
        (Grammar("lark", "start: nowhere"), "nowhere"),
        (Grammar("lark", 'begin: "a"'), "no start rule"),
        (Grammar("llguidance", "{}"), "the llguidance grammar is not valid"),
    ],
)
def test_what_is_not_valid_is_refused(model: LoadedModel, grammar: Grammar, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        ask(model, grammar)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, MrsError)
