"""What a model that may call tools needs: a prompt, a grammar and a parser."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from mrs.errors import UsageError
from mrs.grammar.source import grammars_of
from mrs.request import Grammar, Message
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
        described = [_as_text(message, self.format) for message in messages]
        first = described[0] if described and described[0]["role"] == "system" else None
        system = _description(self._request, self.format)
        if first is None:
            return [Message(role="system", content=system), *described]
        content = f"{first['content']}\n\n{system}"
        return [Message(role="system", content=content), *described[1:]]

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


def _as_text(message: Message, style: CallFormat) -> Message:
    """A message without calls and results, which are in its text instead."""
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return Message(role="user", content=content)
    if not message.get("tool_calls"):
        return message
    calls = style.separator.join(
        f"{style.before}{call['name']}{style.between}{call['arguments']}{style.after}"
        for call in message["tool_calls"]
    )
    content = f"{message['content']}\n{calls}" if message["content"] else calls
    return Message(role=message["role"], content=content)
