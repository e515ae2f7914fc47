"""Grammars in requests of the Python API and on the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mrs import ChatCompletionRequest, CompletionRequest, Runner, Which
from mrs.errors import Unsupported, UsageError
from mrs.grammar.request_fields import grammar_of, grammar_of_response_format
from mrs.request import Grammar
from mrs_cli.parsing.grammar_flags import read_grammar

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
          "additionalProperties": False}  # fmt: skip
QUESTION = [{"role": "user", "content": "Is it?"}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "ok", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(Which.Plain("demo"), cpu=True) as made:
        yield made


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"grammar": "yes|no", "grammar_type": "regex"}, "yes|no"),
        ({"grammar": 'start: "a" "b"', "grammar_type": "lark"}, "ab"),
        ({"grammar": json.dumps(SCHEMA), "grammar_type": "json_schema"}, r'\{"ok": (true|false)\}'),
        ({"grammar": SCHEMA, "grammar_type": "json_schema"}, r'\{"ok": (true|false)\}'),
        ({"response_format": FORMAT}, r'\{"ok": (true|false)\}'),
    ],
)
def test_a_request_of_the_api(runner: Runner, settings: dict[str, Any], pattern: str) -> None:
    request = ChatCompletionRequest(QUESTION, temperature=1.0, n_choices=3, **settings)
    choices = runner.send_chat_completion_request(request).choices
    assert all(re.fullmatch(pattern, choice.message.content) for choice in choices)
    assert {choice.finish_reason for choice in choices} == {"stop"}
    completion = CompletionRequest("It is", temperature=1.0, **settings)
    text = runner.send_completion_request(completion).choices[0].text
    assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"grammar": "x"}, "grammar and grammar_type belong together"),
        ({"grammar_type": "regex"}, "grammar and grammar_type belong together"),
        (
            {"grammar": "x", "grammar_type": "poem"},
            "give regex, json_schema, lark, gbnf or llguidance",
        ),
        ({"grammar": 5, "grammar_type": "regex"}, "grammar is 5: give a string"),
        ({"grammar": {}, "grammar_type": "regex"}, "the grammar is not a string"),
        (
            {"response_format": {"type": "xml"}},
            "give text, json_object, json_schema, regex or grammar",
        ),
        ({"response_format": {"type": "json_object", "schema": 1}}, "is no object"),
        ({"response_format": {"type": "json_schema"}}, "response_format lacks its schema"),
        ({"response_format": "json"}, "response_format is 'json': give an object"),
        ({"response_format": FORMAT, "grammar": "x", "grammar_type": "regex"}, "both given"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ChatCompletionRequest(QUESTION, **settings)


def test_fields_of_requests() -> None:
    assert grammar_of_response_format({"type": "text"}) is None
    assert grammar_of_response_format({"type": "json_object"}) == Grammar("json_object")
    assert grammar_of("llguidance", {"grammars": []}) == Grammar("llguidance", '{"grammars": []}')
    with pytest.raises(UsageError):
        grammar_of("tool_calls", "{}")


def test_a_flag_or_a_file(tmp_path: Path) -> None:
    schema, lark = tmp_path / "ok.json", tmp_path / "ok.lark"
    schema.write_text(json.dumps(SCHEMA))
    lark.write_text('start: "ok"')
    assert read_grammar("regex:a:b", None) == Grammar("regex", "a:b")
    assert read_grammar('lark:start: "a"', None) == Grammar("lark", 'start: "a"')
    assert read_grammar('gbnf:root ::= "a"', None) == Grammar("gbnf", 'root ::= "a"')
    llama = tmp_path / "ok.gbnf"
    llama.write_text('root ::= [0-9]+ ("," " "? [0-9]+)*  # numbers\n')
    assert read_grammar(str(llama), None).kind == "gbnf"
    assert read_grammar("json_object", None) == Grammar("json_object")
    assert read_grammar(str(lark), None) == Grammar("lark", 'start: "ok"')
    assert read_grammar(str(schema), None) == read_grammar(None, str(schema))
    assert read_grammar(None, str(schema)) == Grammar("json_schema", json.dumps(SCHEMA))


@pytest.mark.parametrize(
    ("grammar", "schema", "words"),
    [
        ("regex:(", None, "the regular expression is not valid"),
        ("poem", None, "--grammar poem has no kind: give regex:TEXT"),
        ("missing.lark", None, "--grammar missing.lark cannot be read: No such file"),
        (None, "missing.json", "--json-schema missing.json cannot be read"),
        ("regex:a", "x.json", "both --grammar and --json-schema are given"),
    ],
)
def test_a_flag_that_is_wrong(grammar: str | None, schema: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        read_grammar(grammar, schema)
    with pytest.raises(Unsupported, match="cannot be enforced: not"):
        read_grammar('json_schema:{"not": {}}', None)


@pytest.mark.full
def test_a_plan_imports_no_grammars() -> None:
    program = (
        "import sys; from mrs_cli.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit('llguidance' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", "--dry-run", "-m", "demo"],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0
