"""What llguidance compiles: a grammar of a request in its JSON form, and where it begins."""

from __future__ import annotations

import json
import re
from typing import Any

from mrs.errors import Unsupported, UsageError
from mrs.grammar.conjunctions import MOST_AT_ONCE, in_lark, in_schema
from mrs.request import Grammar

#: Each may nest what follows; llguidance needs stack for each level, and quadratic time.
_NESTING = re.compile(r"[(\[{:*+?|]")
_MAX_NESTING = {
    "json_schema": 20_000,
    "tool_calls": 20_000,
    "llguidance": 2_000,
    "lark": 2_000,
    "gbnf": 2_000,
    "regex": 2_000,
}
_MAX_CHARACTERS = 2**20

#: JSON as `json.dumps` writes it: no choice of white space, so that more of it is forced.
JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
Grammars = list[dict[str, Any]]


def grammars_of(grammar: Grammar) -> Grammars:
    """The grammars of llguidance's JSON form; the first one is the start. Raises UsageError."""
    import llguidance

    _check_size(grammar)
    _check_conjunctions(grammar)
    matcher = llguidance.LLMatcher
    if grammar.kind == "lark":
        return [{"lark_grammar": grammar.text}]
    if grammar.kind == "gbnf":
        return [{"lark_grammar": _lark_of(grammar)}]
    try:
        if grammar.kind == "regex":
            form = matcher.grammar_from_regex(grammar.text)
        elif grammar.kind in ("llguidance", "tool_calls"):
            form = grammar.text
        else:
            schema = grammar.text if grammar.kind == "json_schema" else '{"type": "object"}'
            form = matcher.grammar_from_json_schema(
                schema,
                defaults=JSON_FORM,  # type: ignore[arg-type]
                overrides={"lenient": False},
            )
        grammars = json.loads(form)["grammars"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise invalid(grammar, str(error)) from error
    if not isinstance(grammars, list) or not all(isinstance(each, dict) for each in grammars):
        raise invalid(grammar, "`grammars` is not a list of objects")
    return grammars


def _lark_of(grammar: Grammar) -> str:
    """A GBNF grammar in Lark's form. Raises UsageError."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        text: str = gbnf_to_lark(grammar.text)
    except Exception as error:
        raise invalid(grammar, str(error)) from error
    return text


def _check_size(grammar: Grammar) -> None:
    most = _MAX_NESTING.get(grammar.kind, 0)
    if len(grammar.text) > _MAX_CHARACTERS or len(_NESTING.findall(grammar.text)) > most > 0:
        raise UsageError(f"{_WORDS[grammar.kind][0]} is too large", hint="give a simpler one")


def _check_conjunctions(grammar: Grammar) -> None:
    """Raise UsageError for more patterns at once than can be compiled."""
    kind, text = grammar.kind, grammar.text
    most = 0
    try:
        if kind == "lark":
            most = in_lark(text)
        elif kind == "json_schema":
            most = in_schema(text)
        elif kind in ("tool_calls", "llguidance") and '"allOf"' in text:
            forms = json.loads(text)["grammars"]
            most = max(in_schema(json.dumps(each.get("json_schema"))) for each in forms)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return  # llguidance says what is wrong
    if most > MOST_AT_ONCE:
        raise UsageError(
            f"{_WORDS[kind][0]} has more than {MOST_AT_ONCE} patterns for one text",
            hint="join them into one pattern",
        )


def invalid(grammar: Grammar, message: str) -> UsageError | Unsupported:
    """The error for a grammar that llguidance refuses with `message`."""
    what, hint = _WORDS[grammar.kind]
    for pattern, part in _UNENFORCED.items():
        if match := pattern.search(message):
            names = match[1].replace('"', "")
            return Unsupported(f"{what} has {part}: {names}", hint="leave it out")
    return UsageError(f"{what} is not valid: {_reason(message)}", hint=hint)


def too_complex(grammar: Grammar) -> UsageError:
    """The error for a grammar that takes too much time or memory to compile."""
    return UsageError(
        f"{_WORDS[grammar.kind][0]} takes too long to compile", hint="give a simpler one"
    )


def too_long(grammar: Grammar, most_bytes: int) -> UsageError:
    """The error for a grammar with a long text that is the only one possible."""
    return UsageError(
        f"{_WORDS[grammar.kind][0]} has more than {most_bytes} bytes without a choice",
        hint="repeat less, or give a shorter text",
    )


_UNENFORCED = {
    re.compile(r"Unimplemented keys: \[(.*)\]"): "keywords that cannot be enforced",
    re.compile(r"(oneOf) constraints are not supported"): "keywords that cannot be enforced",
    re.compile(r"Unknown format: (.*)"): "a format that cannot be enforced",
}
_WORDS = {
    "regex": ("the regular expression", "look-around and back-references are not supported"),
    "json_schema": ("the JSON schema", "give an object that some JSON can match"),
    "json_object": ("the JSON object", ""),
    "lark": ("the Lark grammar", "its first rule is `start`"),
    "gbnf": ("the GBNF grammar", "its first rule is `root`; or give the grammar in Lark's form"),
    "tool_calls": ("the schema of a tool", "give a schema that some JSON can match"),
    "llguidance": ("the llguidance grammar", 'give an object like {"grammars": […]}'),
}


def _reason(message: str) -> str:
    """The line of a message of several lines that says what is wrong."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines)[0][:200]
