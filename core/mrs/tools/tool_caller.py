"""What a model that may call tools needs: a prompt, a grammar and a parser."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from mrs.errors import UsageError
from mrs.grammar.source import grammars_of
from mrs.request import Grammar, Message, text_of
from mrs.text.text_processor import TextProcessor
from mrs.tools.call_format import CallFormat
from mrs.tools.call_parser import CallParser
from mrs.tools.find_format import find_format
from mrs.tools.tool_grammar import tool_grammar
from mrs.tools.tool_request import ToolRequest

#: Quotes of strings in Gemma's arguments, in addition to the texts around calls.
_QUOTES = ("<escape>", '<|"|>')


class ToolCaller:
    """The tools of one request, for a model with its tokenizer and chat template.

    A template that knows no tools has them in the system message, and results of calls in messages
    of the user.
    """

    def __init__(self, request: ToolRequest, text: TextProcessor) -> None:
        self._request = request
        self._text = text
        self._template = text.template.with_tools.source if text.template else ""

    @cached_property
    def format(self) -> CallFormat:
        return find_format(self._template)

    @property
    def definitions(self) -> Sequence[Mapping[str, Any]]:
        """The tools for the template."""
        return self._request.definitions if self._knows_tools else ()

    @property
    def _knows_tools(self) -> bool:
        return "tools" in self._template

    def messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages for the template."""
        if self._knows_tools:
            return messages
        described = as_texts(messages, self.format)
        first = described[0] if described and described[0]["role"] == "system" else None
        system = _description(self._request, self.format)
        if first is None:
            return [Message(role="system", content=system), *described]
        return [{**first, "content": f"{text_of(first)}\n\n{system}"}, *described[1:]]

    def grammar(self, free: Grammar | None) -> Grammar:
        """The grammar of the reply; without calls it matches `free`. Raises UsageError."""
        rules = None if free is None else grammars_of(free)
        try:
            return tool_grammar(self.format, self._request, self._text.tokenizer, rules)
        except RecursionError:
            raise UsageError(
                "a tool's parameters are nested too deeply", hint="flatten them"
            ) from None

    def parser(self) -> CallParser:
        """The parser of one reply."""
        style = self.format
        marks = [style.begin, style.before, style.between, style.after, style.separator, style.end]
        spelled = "\n".join([*marks, *_QUOTES])
        controls = self._text.tokenizer.control_ids
        shown = frozenset(text for text in controls if text in spelled)
        if self._text.tokenizer.is_harmony:
            shown = frozenset({style.read_before})
        return CallParser(style, self._request, shown)


def _description(request: ToolRequest, style: CallFormat) -> str:
    tools = "\n".join(json.dumps(each, ensure_ascii=False) for each in request.definitions)
    form = f"{style.before}NAME{style.between}{{ARGUMENTS}}{style.after}"
    return f"You can call these functions:\n{tools}\nTo call one, write:\n{form}"


def shown_by_template(messages: Sequence[Message], text: TextProcessor) -> Sequence[Message]:
    """The messages of a request without tools; calls are texts if the template shows none."""
    has_calls = any(message.get("tool_calls") for message in messages)
    forms = text.forms(has_tools=False) if has_calls else None
    if not has_calls or (forms is not None and forms.calls is not None):
        return messages
    return as_texts(messages, find_format("" if text.template is None else text.template.source))


def as_texts(messages: Sequence[Message], style: CallFormat) -> list[Message]:
    """The messages with calls and results in their texts; results in a row are one message."""
    made: list[Message] = []
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        turn = list(group)
        made += [_results(turn)] if is_result else [_said(each, style) for each in turn]
    return made


def _results(messages: Sequence[Message]) -> Message:
    """The results of calls as a message of the user."""
    texts = [f"<tool_response>\n{text_of(message)}\n</tool_response>" for message in messages]
    said = Message(role="user", content="\n".join(texts))
    if images := [image for message in messages for image in message.get("images", ())]:
        said["images"] = images
    return said


def _said(message: Message, style: CallFormat) -> Message:
    """A message with its calls as text."""
    if not message.get("tool_calls"):
        return message
    said = message.copy()
    calls = style.separator.join(
        f"{style.before}{call['name']}{style.between}{call['arguments']}{style.after}"
        for call in said.pop("tool_calls")
    )
    return {**said, "content": "\n".join(filter(None, (message["content"], calls)))}
