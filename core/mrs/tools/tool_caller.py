"""What a model that may call tools needs: a prompt, a grammar and a parser."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count, groupby
from typing import Any

from mrs.errors import UsageError
from mrs.grammar.source import grammars_of
from mrs.request import Grammar, Message, ToolCallMessage, text_of
from mrs.text.harmony import CALL_NAME
from mrs.text.text_processor import TextProcessor
from mrs.tools.call_format import CallFormat
from mrs.tools.call_parser import CallParser
from mrs.tools.known_formats import HERMES, unshown_format
from mrs.tools.tool_grammar import tool_grammar
from mrs.tools.tool_request import ToolRequest
from mrs.tools.tool_support import ToolSupport, tool_support


class ToolCaller:
    """The tools of one request, for a model with its tokenizer and chat template.

    Tools that the template would not show are in the system message; calls that it would not show
    are in the texts of messages, and their results in messages of the user.
    """

    def __init__(self, request: ToolRequest, text: TextProcessor) -> None:
        self._request = request
        self._text = text

    @cached_property
    def _support(self) -> ToolSupport:
        template = self._text.template
        return tool_support(template.with_tools if template else None)

    @property
    def format(self) -> CallFormat:
        return self._support.style

    @property
    def definitions(self) -> Sequence[Mapping[str, Any]]:
        """The tools for the template."""
        return self._request.definitions if self._support.shows_tools else ()

    def messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages for the template. Raises Unsupported if it cannot be told how to call."""
        style = self.format
        if style.id_form:
            messages = with_ids(messages, style.id_form)
        messages = with_calls_shown(messages, self._text, style)
        if self._support.shows_tools:
            return messages
        system = _description(self._request, style)
        if not messages or messages[0]["role"] != "system":
            return [Message(role="system", content=system), *messages]
        content = f"{text_of(messages[0])}\n\n{system}"
        return [{**messages[0], "content": content}, *messages[1:]]

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
        spelled = "\n".join(style.marks)
        controls = self._text.tokenizer.control_ids
        shown = frozenset(text for text in controls if text in spelled)
        if self._text.tokenizer.is_harmony:
            shown = frozenset({CALL_NAME})
        return CallParser(style, self._request, shown)


def _description(request: ToolRequest, style: CallFormat) -> str:
    tools = "\n".join(json.dumps(each, ensure_ascii=False) for each in request.definitions)
    form = style.write([("NAME", {"ARGUMENT": "VALUE"})])
    return f"You can call these functions:\n{tools}\nTo call one, write:\n{form}"


def with_calls_shown(
    messages: Sequence[Message], text: TextProcessor, style: CallFormat | None = None
) -> Sequence[Message]:
    """The messages; calls and results are in their texts if the template shows no calls.

    `style` is how the request's tools are called; without tools it is that of the template.
    Results in a row, and what the user says after them, become one message of the user.
    """
    if not any(message.get("tool_calls") for message in messages):
        return messages
    forms = text.forms(has_tools=style is not None)
    if forms is not None and forms.calls is not None:
        return messages
    if style is None:
        style = unshown_format("" if forms is None else forms.template.source) or HERMES
    if style is not HERMES:  # templates that describe tools have a role for results
        return [_said(message, style) for message in messages]
    shown: list[Message] = []
    for is_asking, group in groupby(messages, key=lambda each: each["role"] in ("tool", "user")):
        turn = list(group)
        if is_asking and turn[0]["role"] == "tool":
            shown.append(_results(turn))
        else:
            shown += [_said(message, style) for message in turn]
    return shown


def _results(messages: Sequence[Message]) -> Message:
    """The results of calls, and what the user says after them, as a message of the user."""
    texts = [
        f"<tool_response>\n{text_of(message)}\n</tool_response>"
        if message["role"] == "tool"
        else text_of(message)
        for message in messages
    ]
    results = Message(role="user", content="\n".join(texts))
    if images := [image for message in messages for image in message.get("images", ())]:
        results["images"] = images
    return results


def _said(message: Message, style: CallFormat) -> Message:
    """A message with its calls as text."""
    if not message.get("tool_calls"):
        return message
    shown = message.copy()
    calls = style.write([(call["name"], _object(call)) for call in shown.pop("tool_calls")])
    return {**shown, "content": "\n".join(filter(None, (message["content"], calls)))}


def _object(call: ToolCallMessage) -> dict[str, Any] | str:
    """The arguments of an earlier call; those of one that was cut off stay as they are."""
    try:
        read = json.loads(call["arguments"] or "{}")
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else call["arguments"]


def with_ids(messages: Sequence[Message], form: str) -> list[Message]:
    """The messages with ids of calls in a form with {name} and {number}, counted from 0."""
    ids: dict[str, str] = {}
    numbers = count()
    changed: list[Message] = []
    for message in messages:
        message = message.copy()
        if message.get("tool_calls"):
            calls = [call.copy() for call in message["tool_calls"]]
            for call in calls:
                call_id = form.format(name=call["name"], number=next(numbers))
                ids[call["id"]] = call_id
                call["id"] = call_id
            message["tool_calls"] = calls
        if "tool_call_id" in message:
            message["tool_call_id"] = ids.get(message["tool_call_id"], message["tool_call_id"])
        changed.append(message)
    return changed
