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
from mrs.tools.call_format import CallFormat
from mrs.tools.tool_request import ToolRequest

#: Any text that is no thought, so that a mark in a thought begins no call.
_ANSWER = rf"{ANY_TEXT} & ~/\s*{OPEN}(?s:.*)/"

Calls = Callable[[str], str]

#: A tag at the start of a call, after which nothing else may follow.
_TAG = re.compile(r"<[^<>]+>|\[[A-Z_]+\]")


def tool_grammar(
    style: CallFormat, request: ToolRequest, tokenizer: Tokenizer, free: Grammars | None = None
) -> Grammar:
    """Text or calls, in the format `style`; calls alone if they are required.

    `free` is the grammar of a reply without calls, by default any text.
    """
    lark = LarkGrammar(tokenizer)
    calls = _calls(style, request, lark)
    if request.is_required:
        lark.rule("start", calls(style.begin + style.before))
        extra: Grammars = []
    elif free is None:
        _text_or_calls(style, lark, calls)
        extra = []
    else:
        channel = lark.text("<|channel|>final<|message|>") if style.name == "harmony" else ""
        lark.rule("start", f"{channel} @free | {calls(style.begin + style.before)}")
        extra = [{**free[0], "name": "free"}, *free[1:]]
    return Grammar("tool_calls", json.dumps({"grammars": [*lark.grammars, *extra]}))


def _calls(style: CallFormat, request: ToolRequest, lark: LarkGrammar) -> Calls:
    """Writes the rules of the calls; the result gives the body of a rule for all of them.

    The body begins with a part of the opening text.
    """
    names = []
    for number, tool in enumerate(request.callable):
        style.arguments.rules(f"arguments_{number}", tool.parameters, lark)
        opening, after = lark.text(tool.name + style.between), lark.text(style.after)
        lark.rule(f"call_{number}", f"{opening} arguments_{number} {after}")
        names.append(f"call_{number}")
    lark.rule("call", " | ".join(names))
    more = ""
    if request.is_parallel and style.is_parallel:
        more = f"({lark.text(style.separator + style.before)} call)*"
    end = lark.text(style.end)
    return lambda opening: f"{lark.text(opening)} call {more} {end}"


def _text_or_calls(style: CallFormat, lark: LarkGrammar, calls: Calls) -> None:
    """The rule `start` of a reply that may call: a mark in its text begins the calls."""
    opening = style.begin + style.before
    if style.name == "harmony":
        final = lark.text("<|channel|>final<|message|>")
        preamble = lark.text("<|channel|>commentary<|message|>")
        lark.rule("preamble", f"{preamble} {lark.until('<|end|><|start|>assistant')}")
        lark.rule("start", f"preamble? ({final} TEXT | {calls(opening)})")
        lark.rule("TEXT", ANY_TEXT)
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
