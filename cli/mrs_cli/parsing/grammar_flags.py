"""The grammar that --grammar and --json-schema give."""

from __future__ import annotations

from pathlib import Path

from mrs.errors import UsageError
from mrs.request import Grammar, GrammarKind

_KINDS: dict[str, GrammarKind] = {
    "regex": "regex",
    "lark": "lark",
    "gbnf": "gbnf",
    "json_schema": "json_schema",
}
_SUFFIXES: dict[str, GrammarKind] = {
    ".lark": "lark",
    ".gbnf": "gbnf",
    ".json": "json_schema",
}


def read_grammar(grammar: str | None, json_schema: str | None) -> Grammar:
    """The grammar of one of the two flags; the other is None.

    Raises UsageError if both are given, and for a grammar that is not valid.
    """
    if grammar is None:
        read = Grammar("json_schema", _text_of("--json-schema", json_schema or ""))
    elif json_schema is not None:
        raise UsageError("both --grammar and --json-schema are given", hint="give one of the two")
    else:
        read = _read(grammar)
    from mrs.grammar.compiler import check_grammar

    check_grammar(read)
    return read


def _read(given: str) -> Grammar:
    kind, colon, text = given.partition(":")
    if colon and kind in _KINDS:
        return Grammar(_KINDS[kind], text)
    if given == "json_object":
        return Grammar("json_object")
    suffix = Path(given).suffix
    if suffix not in _SUFFIXES:
        raise UsageError(
            f"--grammar {given} has no kind",
            hint="give regex:TEXT, lark:TEXT, gbnf:TEXT, json_schema:TEXT, json_object, or a "
            ".lark, .gbnf or .json file",
        )
    return Grammar(_SUFFIXES[suffix], _text_of("--grammar", given))


def _text_of(flag: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{flag} {path} cannot be read: {reason}") from error
