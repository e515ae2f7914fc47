"""Reads the calls that a template wrote in the format that was derived from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mrs.events import ToolCallDelta
from mrs.tools.call_format import CallFormat
from mrs.tools.call_parser import CallParser
from mrs.tools.derive.probe import NAMES, Given, Probe, Underivable
from mrs.tools.keyed_arguments import KeyedArguments, kind_of
from mrs.tools.tool_request import Tool, ToolRequest

_PLAIN: Given = {"place": "Rome", "days": 3, "far": 2.5, "sunny": True, "wet": False}
_NESTED: Given = {
    "list": ["a b", 1, True],
    "object": {"inner": {"deep": "text"}, "flag": False},
    "none": [],
    "empty": {},
}
_MARKED: Given = {"name": "x", "parameter": "y", "arguments": {"name": "z"}, "city-name": "w"}
#: Each has to come back alone and with others; the second list only if a reply may have several.
_SHAPES: tuple[tuple[Given, ...], ...] = ((_PLAIN,), (_NESTED,), ({},), (_MARKED,), ({"one": "x"},))
_PARALLEL: tuple[tuple[Given, ...], ...] = ((_PLAIN, {}), ({}, _NESTED), ({}, {}))
#: What a template may write in a way that cannot be read back; replies are held by a grammar.
HOSTILE: Mapping[str, str] = {
    "line feeds": "one\n\ntwo\n",
    "white space around": "  x ",
    "double quotes": 'a "b" c',
    "single quotes": "it's",
    "backslashes": "C:\\new",
    "brackets": '{"a": [1, 2)}]',
    "tags": "<b>1 < 2</b> <|x|>",
    "letters beyond ASCII": "Gr\u00f6\u00dfe \u2192 \U0001f600",
    "numbers": "12",
    "constants": "true",
    "nothing": "",
}


def check_round_trip(style: CallFormat, probe: Probe) -> None:
    """Raises Underivable if the calls that the template wrote are not read as they were given."""
    shapes = [*_SHAPES, *(_PARALLEL if style.is_parallel else ())]
    for given in shapes:
        if read_calls(style, probe.calls(*given), given) != calls_of(given):
            raise Underivable("calls that it wrote are not read as they were")


def lost_texts(style: CallFormat, probe: Probe) -> CallFormat:
    """The format with the kinds of texts that the template does not write in a readable way.

    That may be so in quotes, which a template may forget to escape. Raises Underivable otherwise: a
    text that stands as it is, or is JSON, may lose only the white space around it.
    """
    given = {f"key{number}": text for number, text in enumerate(HOSTILE.values())}
    if read_calls(style, probe.calls(given), [given]) == calls_of([given]):
        return style
    lost = []
    for kind, text in HOSTILE.items():
        read = read_calls(style, probe.calls({"key": text}), [{"key": text}])
        if read == calls_of([{"key": text}]):
            continue
        if not _has_quotes(style) and read != calls_of([{"key": text.strip()}]):
            raise Underivable(f"texts with {kind} are in a form of their own")
        lost.append(kind)
    return replace(style, lost=tuple(lost))


def _has_quotes(style: CallFormat) -> bool:
    keyed = style.arguments
    return isinstance(keyed, KeyedArguments) and keyed.forms["string"].literals is not None


def calls_of(given: Sequence[Given]) -> list[tuple[str, Any]]:
    return list(zip(NAMES, given, strict=False))


def read_calls(style: CallFormat, text: str, given: Sequence[Given]) -> list[tuple[str, Any]]:
    """The names and arguments in a text; the tools have the types of what was given."""
    tools = tuple(
        Tool(name, {"type": "object", "properties": _properties(each)}, {})
        for name, each in zip(NAMES, given, strict=False)
    )
    parser = CallParser(style, ToolRequest(tools, tools))
    start = text.find(style.opening)
    calls: list[list[str]] = []
    for delta in [*parser.push(text[max(start, 0) :]), *parser.finish()]:
        if isinstance(delta, ToolCallDelta) and delta.name is not None:
            calls.append([delta.name, ""])
        elif isinstance(delta, ToolCallDelta):
            calls[-1][1] += delta.arguments
    try:
        return [(name, json.loads(arguments)) for name, arguments in calls]
    except ValueError:
        return []


def _properties(given: Given) -> dict[str, Any]:
    return {key: {"type": kind_of(value)} for key, value in given.items()}
