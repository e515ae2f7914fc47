"""The grammar of a reply that may or must call tools."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from mrs.grammar.lark import ANY_TEXT, LarkGrammar, pattern_of
from mrs.grammar.source import Grammars
from mrs.request import Grammar
from mrs.text.thoughts import OPEN
from mrs.text.tokenizer import Tokenizer
from mrs.tools.call_format import CallFormat, Hole, Parts
from mrs.tools.tool_request import ToolRequest

#: Any text that is no thought, so that a mark in a thought begins no call.
_ANSWER = rf"{ANY_TEXT} & ~/\s*{OPEN}(?s:.*)/"

Calls = Callable[[str], str]

#: A tag at the start of a call, after which nothing else may follow.
_TAG = re.compile(r"<[^<>]+>|\[[A-Z_]+\]")
_HOLES = {Hole.ID: "/[A-Za-z0-9_-]{1,64}/", Hole.NUMBER: "/[0-9]{1,6}/"}


def tool_grammar(
    style: CallFormat, request: ToolRequest, tokenizer: Tokenizer, free: Grammars | None = None
) -> Grammar:
    """Text or calls, in the format `style`; calls alone if they are required.

    `free` is the grammar of a reply without calls, by default any text.
    """
    lark = LarkGrammar(tokenizer)
    calls = _calls(style, request, lark)
    lead = f"({lark.text(style.lead)})? " if style.lead else ""
    if request.is_required:
        lark.rule("start", lead + calls(style.opening))
        extra: Grammars = []
    elif free is None:
        _text_or_calls(style, lark, calls)
        extra = []
    else:
        lark.rule("start", f"{lark.text(style.answer)} @free | {lead}{calls(style.opening)}")
        extra = [{**free[0], "name": "free"}, *free[1:]]
    return Grammar("tool_calls", json.dumps({"grammars": [*lark.grammars, *extra]}))


def _calls(style: CallFormat, request: ToolRequest, lark: LarkGrammar) -> Calls:
    """Writes the rules of the calls; the result gives the body of a rule for all of them.

    The body begins with a part of the opening text.
    """
    tools = range(len(request.callable))
    for number, tool in enumerate(request.callable):
        arguments = f"arguments_{number}"
        lark.is_lenient = not tool.is_strict
        style.arguments.rules(arguments, tool.parameters, lark)
        lark.rule(f"first_{number}", _body(style.first[1:], tool.name, arguments, lark))
    lark.rule("call", " | ".join(f"first_{number}" for number in tools))
    more = ""
    if request.is_parallel and style.is_parallel:
        for number, tool in enumerate(request.callable):
            body = _body(style.following, tool.name, f"arguments_{number}", lark)
            lark.rule(f"next_{number}", body)
        more = f"({' | '.join(f'next_{number}' for number in tools)})*"
    closing = lark.text(style.closing)
    return lambda opening: f"{lark.text(opening)} call {more} {closing}"


def _body(parts: Parts, name: str, arguments: str, lark: LarkGrammar) -> str:
    """The body of a rule for the parts of a call of the tool `name`."""
    holes = {Hole.NAME: lark.letters(name), Hole.ARGUMENTS: arguments, **_HOLES}
    bodies = []
    for part in parts:
        if isinstance(part, tuple):
            bodies.append(f"({_body(part, name, arguments, lark)})?")
        else:
            bodies.append(holes[part] if isinstance(part, Hole) else lark.text(part))
    return " ".join(bodies)


def _text_or_calls(style: CallFormat, lark: LarkGrammar, calls: Calls) -> None:
    """The rule `start` of a reply that may call: a mark in its text begins the calls."""
    opening = style.opening
    if style.name == "harmony":
        final = lark.text("<|channel|>final<|message|>")
        preamble = lark.text("<|channel|>commentary<|message|>")
        lark.rule("preamble", f"{preamble} {lark.until('<|end|><|start|>assistant')}")
        lark.rule("start", f"preamble? ({final} TEXT | {calls(opening)})")
        lark.rule("TEXT", ANY_TEXT)
    elif style.answer:
        end = f"({lark.text(style.answer_end)})?" if style.answer_end else ""
        lark.rule("TEXT", _ANSWER)
        lark.rule("start", f"{lark.text(style.answer)} TEXT {end} | {calls(opening)}")
    elif style.is_at_start:
        lark.rule("TEXT", f"{_ANSWER} & ~/{pattern_of(opening)}(?s:.*)/")
        lark.rule("start", f"TEXT | {calls(opening)}")
    elif lark.starts_with_control(opening) is not None:
        lark.rule("TEXT", _ANSWER)
        lark.rule("start", f"TEXT | TEXT {calls(opening)}")
    else:
        tag = _TAG.match(opening)
        mark = tag[0] if tag else opening
        lark.rule("TEXT", _ANSWER)
        lark.rule("CALLING", f"/(?s:.*){pattern_of(mark)}/ & {_ANSWER}")
        lark.rule("calling[lazy]", "CALLING")
        lark.rule("start", f"TEXT | calling {calls(opening[len(mark) :])}")
