"""Grammars that are small in a request and large once they are compiled, or have no end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from support.hostile.request import HostileRequest, Maker, chat

Schema = dict[str, Any]


def _regex(chance: random.Random) -> str:
    n = chance.choice([3, 100, 1000, 100_000])
    return chance.choice([
        f"(a{{1000}}){{{min(n, 300) + chance.randrange(50)}}}",
        f"((a{{{min(n, 100)}}}){{100}}){{100}}",
        f"a{{1,{n * 1000}}}",
        f"(a|{'|'.join(f'b{i}' for i in range(n))})",
        f"{'(' * n}a{')' * n}",
        f"{'(' * n}a{')*' * n}",
        f"{'.*a' * min(n, 1000)}",
        f"(.*)(.*)(.*)(.*)[^x]{{{n}}}y",
        f"(\\p{{L}}|\\p{{N}}){{{min(n, 1000)}}}",
        f"[{''.join(chr(0x4e00 + i) for i in range(min(n, 5000)))}]{{50}}",
        "(a*)*b", "((a+)+)+$", "(?=a)b", "(a)\\1", "(?<!a)b", "[", "(", "a{2,1}", "\\", "(?P<a>b)",
        "a{99999999999}", "(?i)" + "ß" * min(n, 1000), "\\b" * n, "^" * n, "(?:)" * n,
        f"(?:{'a?' * min(n, 1000)}){'a' * min(n, 1000)}", "\0", "\ud800", "[\\s\\S]{1,100000}",
    ])  # fmt: skip


def _lark(chance: random.Random) -> str:
    n = chance.choice([3, 100, 10_000])
    return chance.choice([
        "start: start", "start: start start | \"a\"", "start: a\na: b\nb: a", "start: \"\"*",
        "start: x\nx: x x x x x x | \"\" | \"a\"", "start: (\"a\"*)*", "start: ((\"a\"?)*)+ \"b\"",
        "\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(n)), f'r{n}: "a"']),
        "start: " + " | ".join(f'"w{i}"' for i in range(n)),
        "start: " + "(" * n + '"a"' + ")" * n,
        "start: " + '"a"? ' * n,
        f'start: "a"~{n * 1000}', f'start: x~{n}\nx: "a"~{n}',
        "start: A\nA: /(a{1000}){300}/",
        "start: A\n" + "\n".join(f"A{i}: /.*{i}/" for i in range(n)),
        "%import common.WORD\nstart: WORD", "%import os.system\nstart: system",
        "%ignore /.*/\nstart: \"a\"",
        "start: a", "start", ":", "start: \"a", "start: /[/", "start: %json {\"$ref\": \"#\"}",
        'start: %json {"type": "string", "minLength": 1000000}',
        "start: %regex {\"substring_chars\": \"a\"}",
        "start: @x", "start: %llguidance {}", "start: /a/ & /b/ & ~/c{1000}/", "\0" * n,
    ])  # fmt: skip


def _gbnf(chance: random.Random) -> str:
    n = chance.choice([3, 100, 10_000])
    return chance.choice([
        "root ::= root", 'root ::= root root | "a"', "root ::= a\na ::= b\nb ::= a",
        f'root ::= "a"{{{n * 100}}}', f'root ::= ("a"{{{n}}}){{{n}}}', 'root ::= ("a"*)*',
        "root ::= " + " | ".join(f'"w{i}"' for i in range(n)), "root ::= [^", "::=", "root ::= .",
        "root ::= " + "(" * n + '"a"' + ")" * n, "root ::= [\\x00-\\U0010FFFF]{1000}", "a ::= b",
        "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(n)),
        f'r{n} ::= "a"']),
    ])  # fmt: skip


def _deep(depth: int, outer: Callable[[Any], Schema]) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = outer(schema)
    return schema


def _recursive(chance: random.Random) -> Schema:
    return chance.choice([
        {"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {"allOf": [{"$ref": "#"}, {"type": "object"}]},
        {"$ref": "http://169.254.169.254/schema"}, {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/" + "a/" * 10_000}, {"$ref": 1}, {"$ref": "#/x"},
        {"not": {"$ref": "#"}}, {"items": {"$ref": "#"}, "type": "array", "minItems": 10},
        {"$dynamicRef": "#a"}, {"$id": "http://a/b", "$ref": "b"},
        {"$ref": "#/$defs/r0", "$defs": {
            **{f"r{i}": {"anyOf": [{"$ref": f"#/$defs/r{i + 1}"}] * 2} for i in range(25)},
            "r25": {"type": "null"}}},
        {"$ref": "#/$defs/r0", "$defs": {
            **{f"r{i}": {"allOf": [{"$ref": f"#/$defs/r{i + 1}"}] * 2} for i in range(25)},
            "r25": {"type": "string"}}},
    ])  # fmt: skip


def _large(chance: random.Random) -> Schema:
    n = chance.choice([100, 5000, 100_000])
    depth = chance.choice([20, 100, 300])
    return chance.choice([
        {"enum": list(range(n))}, {"enum": [f"{'x' * 20}{i}" for i in range(n)]},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)},
         "required": [f"p{i}" for i in range(n)]},
        {"type": "object", "properties": {f"p{i}": {} for i in range(n)}},
        {"anyOf": [{"const": i} for i in range(n)]},
        {"oneOf": [{"type": "object", "properties": {f"a{i}": {"type": "integer"}}}
                   for i in range(min(n, 3000))]},
        {"allOf": [{"type": "string", "pattern": f".*{i}"} for i in range(min(n, 1000))]},
        {"type": "object", "patternProperties": {f"^a{i}.*b": {} for i in range(min(n, 5000))}},
        {"type": "array", "prefixItems": [{"type": "integer"}] * n},
        {"type": "object", "required": [str(i) for i in range(n)]},
        _deep(depth, lambda s: {"anyOf": [s, {"type": "null"}]}),
        _deep(depth, lambda s: {"type": "object", "properties": {"a": s}}),
        _deep(depth, lambda s: {"type": "array", "items": s, "minItems": 2}),
        _deep(min(depth, 15), lambda s: {"anyOf": [s, {"type": "array", "items": s}]}),
        _deep(min(depth, 200), lambda s: {"allOf": [s, s]} if depth < 20 else {"not": s}),
        {"const": "x" * n * 10}, {"type": "string", "enum": ["\0", "\ud800", "é" * n]},
    ])  # fmt: skip


def _counted(chance: random.Random) -> Schema:
    n = chance.choice([100, 10**5, 10**9, 10**30, -1, 1.5])
    return chance.choice([
        {"type": "string", "minLength": n}, {"type": "string", "maxLength": n},
        {"type": "array", "minItems": n, "items": {"type": "integer"}},
        {"type": "array", "maxItems": n, "items": {"type": "array", "maxItems": n}},
        {"type": "object", "minProperties": n}, {"type": "object", "maxProperties": n},
        {"type": "integer", "minimum": n, "maximum": 10**40}, {"type": "number",
        "multipleOf": 1e-300},
        {"type": "integer", "multipleOf": 10**20 + 7}, {"type": "number",
        "exclusiveMinimum": 1e308},
        {"type": "string", "pattern": "(a{1000}){300}"}, {"type": "string", "pattern": "(a*)*b"},
        {"type": "string", "pattern": "(?=x)"}, {"type": "string", "format": "date-time",
        "minLength": n},
        {"type": "string", "pattern": ".*a.*b.*c.*d.*", "maxLength": 1000},
        {"type": "array", "uniqueItems": True, "contains": {"type": "null"}, "minContains": n},
    ])  # fmt: skip


def _joined(chance: random.Random) -> Schema:
    """Patterns that one text has to match, all at once."""
    patterns: list[Schema] = [
        {"type": "string", "pattern": f".*{i}"} for i in range(chance.choice([8, 30, 1000]))
    ]
    objects = [{"type": "object", "properties": {"a": each}} for each in patterns]
    return {"allOf": chance.choice([patterns, objects])}


def _odd(chance: random.Random) -> Any:
    return chance.choice([
        {}, {"type": []}, {"type": "x"}, {"type": ["string"] * 1000}, {"properties": []}, [], "", 1,
        {"enum": []}, {"anyOf": []}, {"type": "object", "additionalProperties": "x"}, {"if": {}},
        {"type": "object", "dependentSchemas": {"a": {"$ref": "#"}}}, {"x" * 100_000: 1}, None,
        True,
        {"unevaluatedProperties": False}, {"type": "string", "contentEncoding": "base64"}, "{",
        {"type": "object", "properties": {"": {}, "\0": {}, "\ud800": {}, '"': {}}}, "[" * 10_000,
    ])  # fmt: skip


def _ready_grammar(chance: random.Random) -> str:
    """The library's own JSON, which says how its tables look."""
    n = chance.choice([1, 1000])
    return chance.choice([
        json.dumps({"grammars": [{"json_schema": {"type": "string"}}] * n}),
        json.dumps({"grammars": [{"lark_grammar": "start: @1"}, {"lark_grammar": "start: @0"}]}),
        json.dumps({"grammars": [{"nodes": [{"Join": {"sequence": [0]}}] * n, "rx_nodes": []}]}),
        json.dumps({"grammars": []}), json.dumps({"grammars": [{"lark_grammar": "start: @9"}]}),
        json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}], "max_tokens": 10**30}), "{}",
        "[]",
    ])  # fmt: skip


def _grammar(kind: str, make: Callable[[random.Random], Any]) -> Maker:
    """In one of the fields that take such a grammar."""

    def made(chance: random.Random) -> HostileRequest:
        text = make(chance)
        fields: list[Schema] = [{"grammar": {"type": kind, "value": text}}]
        if kind == "regex":
            fields += [
                {"guided_regex": text},
                {"response_format": {"type": "regex", "value": text}},
            ]
        elif kind != "llguidance":
            fields += [{"guided_grammar": text}, {"structured_outputs": {"grammar": text}}]
        return chat(f"grammar: {kind} {str(text)[:40]!r}", **chance.choice(fields))

    return made


def _schema(name: str, make: Callable[[random.Random], Any]) -> Maker:
    def made(chance: random.Random) -> HostileRequest:
        schema = make(chance)
        tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
        chosen: Schema = chance.choice([
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a",
            "schema": schema}}},
            {"guided_json": schema}, {"json_schema": schema},
            {"structured_outputs": {"json": schema}},
            {"tools": [tool], "tool_choice": "required"}, {"tools": [tool]},
        ])  # fmt: skip
        return chat(f"schema: {name} {str(schema)[:50]}, {next(iter(chosen))}", **chosen)

    return made


def _choices(chance: random.Random) -> HostileRequest:
    choices = chance.choice([
        [f"choice {i}" for i in range(100_000)], ["a" * 10**6, "b"], ["\0", "\ud800"], [""], [],
        ["a" * i for i in range(1000)], ['"', "\\", "\n", "%import"], [1], ["x"] * 10**5,
    ])  # fmt: skip
    return chat(f"grammar: {len(choices)} choices", guided_choice=choices)


def _deeper(chance: random.Random) -> HostileRequest:
    """A schema that is deeper than what writes JSON here can write."""
    depth = chance.choice([400, 3000, 100_000])
    opened, closed = chance.choice([
        (b'{"properties":{"a":', b"}}"), (b'{"anyOf":[', b"]}"), (b'{"not":', b"}"), (b'{"items":',
        b"}"),
    ])  # fmt: skip
    schema = opened * depth + b'{"type":"string"}' + closed * depth
    field = chance.choice([
        b'"guided_json": %s',
        b'"response_format": {"type": "json_schema", "json_schema": {"schema": %s}}',
        b'"tools": [{"type": "function", "function": {"name": "f", "parameters": %s}}]',
    ])  # fmt: skip
    body = b'{"messages": "Hi", "max_tokens": 4, ' + field % schema + b"}"
    return HostileRequest(f"schema: depth {depth:,}", "/v1/chat/completions", body)


MAKERS: tuple[Maker, ...] = (
    _deeper,
    _grammar("regex", _regex),
    _grammar("regex", _regex),
    _grammar("regex", _regex),
    _grammar("lark", _lark),
    _grammar("lark", _lark),
    _grammar("lark", _lark),
    _grammar("gbnf", _gbnf),
    _grammar("gbnf", _gbnf),
    _grammar("llguidance", _ready_grammar),
    _schema("recursive", _recursive),
    _schema("recursive", _recursive),
    _schema("large", _large),
    _schema("large", _large),
    _schema("large", _large),
    _schema("counted", _counted),
    _schema("counted", _counted),
    _schema("odd", _odd),
    _schema("joined", _joined),
    _choices,
)
