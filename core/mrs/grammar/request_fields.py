"""From the fields of a request that give replies a form to a grammar.

Besides `grammar` and `response_format` they are those that vLLM, llama.cpp and TGI have: each means
what it means there, or is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from mrs.errors import Unsupported, UsageError
from mrs.request import Grammar

_KINDS = ("regex", "json_schema", "lark", "gbnf", "llguidance")


def grammar_of(kind: Any, value: Any) -> Grammar:
    """The grammar of a type and a value, which for JSON may be an object. Raises UsageError."""
    if kind not in _KINDS:
        names = f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}"
        raise UsageError("the type of the grammar is unknown", hint=f"give {names}")
    if isinstance(value, Mapping) and kind in ("json_schema", "llguidance"):
        value = _json(value)
    if not isinstance(value, str):
        raise UsageError("the grammar is not a string", hint="give its text")
    return Grammar(kind, value)


def grammar_of_text(text: Any) -> Grammar:
    """A grammar that does not say its kind: GBNF, as llama.cpp has it, or Lark."""
    return grammar_of("gbnf" if isinstance(text, str) and "::=" in text else "lark", text)


def grammar_of_schema(schema: Any) -> Grammar:
    """The grammar of a JSON schema, which may be its text. Raises UsageError."""
    if not isinstance(schema, (Mapping, str)):
        raise UsageError("the JSON schema is no object", hint="give a JSON schema")
    return grammar_of("json_schema", schema)


def grammar_of_choices(choices: Any) -> Grammar:
    """The grammar of some texts, one of which is the reply. Raises UsageError."""
    if not isinstance(choices, list) or not choices or not all(map(_is_choice, choices)):
        raise UsageError("the choices are not a list of texts", hint='give ["A", "B"]')
    texts = (json.dumps(text, ensure_ascii=False) for text in choices)
    return Grammar("lark", f"start: {' | '.join(texts)}")


def _json(value: Any) -> str:
    """A value as JSON. `json.dumps` would take several times as long, and hold up all threads."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _is_choice(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


#: Fields of requests over HTTP that hold a grammar, each with what reads its value.
FORM_FIELDS: Mapping[str, Callable[[Any], Grammar | None]] = {
    "guided_json": grammar_of_schema,
    "guided_regex": lambda value: grammar_of("regex", value),
    "guided_choice": grammar_of_choices,
    "guided_grammar": grammar_of_text,
    "json_schema": grammar_of_schema,
    "structured_outputs": lambda value: _structured(value),
    "response_format": lambda value: grammar_of_response_format(value),
    "grammar": lambda value: (
        grammar_of(value.get("type"), value.get("value"))
        if isinstance(value, Mapping)
        else grammar_of_text(value)
    ),
}


def _structured(value: Any) -> Grammar | None:
    """The grammar of vLLM's `structured_outputs`, an object with one of some keys."""
    readers: dict[str, Callable[[Any], Grammar | None]] = {
        "json": grammar_of_schema,
        "regex": FORM_FIELDS["guided_regex"],
        "choice": grammar_of_choices,
        "grammar": grammar_of_text,
        "json_object": lambda is_asked: Grammar("json_object") if is_asked else None,
    }
    given = {
        key: each
        for key, each in (value.items() if isinstance(value, Mapping) else ())
        if each not in (None, False)
    }
    if len(given) != 1 or not given.keys() <= readers.keys():
        names = ", ".join(map(str, given)) or "nothing"
        raise UsageError(
            f"structured_outputs has {names[:100]}", hint=f"give one of {', '.join(readers)}"
        )
    ((key, each),) = given.items()
    return readers[key](each)


def grammar_of_response_format(value: Any) -> Grammar | None:
    """The grammar of a `response_format`; None for one that allows any text.

    Raises UsageError and Unsupported.
    """
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = value.get("schema")  # as llama.cpp, Together and Fireworks have it
        if schema is None:
            return Grammar("json_object")
        if not isinstance(schema, Mapping):
            raise UsageError(
                "the schema of response_format is no object", hint="give a JSON schema"
            )
        return Grammar("json_schema", _json(schema))
    if kind in ("json", "regex"):  # as TGI has it
        text = value.get("value", value.get("pattern"))
        return grammar_of_schema(text) if kind == "json" else grammar_of("regex", text)
    if kind == "grammar":  # as Fireworks has it
        return grammar_of_text(value.get("grammar"))
    if kind == "structural_tag":
        raise Unsupported(
            "response_format of the type structural_tag is not supported",
            hint="give tools, or grammar of the type lark",
        )
    if kind != "json_schema":
        raise UsageError(
            "the type of response_format is unknown",
            hint="give text, json_object, json_schema, regex or grammar",
        )
    schema = value.get("json_schema")
    if isinstance(schema, Mapping) and isinstance(schema.get("schema"), Mapping):
        return Grammar("json_schema", _json(schema["schema"]))
    raise UsageError(
        "response_format lacks its schema", hint='{"json_schema": {"name": …, "schema": {…}}}'
    )
