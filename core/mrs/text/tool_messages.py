"""Definitions of tools, their calls and their results, as chat templates expect them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mrs.request import Message

_NINE = re.compile(r"[A-Za-z0-9]{9}")


@dataclass(frozen=True)
class CallForm:
    """How a template wants calls of tools.

    keeps_none     the content of a message with calls and no text is None, else an empty text
    as_text        arguments are JSON in a string, else an object
    has_short_ids  ids are nine letters and digits
    beside_text    a message with calls may have a text, which else is a message before it
    in_parallel    a message may have several calls, else each is a message before its result
    """

    keeps_none: bool = False
    as_text: bool = False
    has_short_ids: bool = False
    beside_text: bool = True
    in_parallel: bool = True


@dataclass(frozen=True)
class ToolForm:
    """How a template wants definitions of tools.

    in_system  they are in a field of the system message, else an argument of the template
    as_text    and that field is the JSON of the functions, else a list of the definitions
    """

    in_system: bool = False
    as_text: bool = False


def call_fields(message: Message, protect: Callable[[str], str], form: CallForm) -> dict[str, Any]:
    """The fields of a message that tell of calls, and its name."""
    fields: dict[str, Any] = {}
    written = _short if form.has_short_ids else protect
    if "name" in message:
        fields["name"] = protect(message["name"])
    if "tool_call_id" in message:
        fields["tool_call_id"] = written(message["tool_call_id"])
    if message.get("tool_calls"):
        fields["tool_calls"] = [
            {
                "id": written(call["id"]),
                "type": "function",
                "function": {
                    "name": protect(call["name"]),
                    "arguments": _arguments(call["arguments"], protect, form),
                },
            }
            for call in message["tool_calls"]
        ]
    return fields


def protected(value: Any, protect: Callable[[str], str]) -> Any:
    """A value of JSON whose strings passed through `protect`."""
    if isinstance(value, str):
        return protect(value)
    if isinstance(value, Mapping):
        return {protect(str(key)): protected(each, protect) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [protected(each, protect) for each in value]
    return value


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """The messages, of which each has one call at most, before its result.

    Results keep their order; calls without one are the last.
    """
    arranged: list[Message] = []
    waiting: dict[str, Message] = {}
    for message in messages:
        if message["role"] == "tool":
            call = waiting.pop(message.get("tool_call_id", ""), None)
            arranged += [message] if call is None else [call, message]
            continue
        arranged += waiting.values()
        parts = list(_parts(message))
        waiting = {part["tool_calls"][0]["id"]: part for part in parts if len(parts) > 1}
        arranged += [] if waiting else [message]
    return [*arranged, *waiting.values()]


def _parts(message: Message) -> Iterator[Message]:
    """A message for each call; the first has the text and the thought."""
    for index, call in enumerate(message.get("tool_calls", ())):
        first = message if index == 0 else Message(role=message["role"], content=None)
        yield {**first, "tool_calls": [call]}


def text_before_calls(message: Message) -> list[Message]:
    """A message with a text and calls as two messages; other messages as they are."""
    if not message["content"] or not message.get("tool_calls"):
        return [message]
    text_message = message.copy()
    calls = text_message.pop("tool_calls")
    return [text_message, Message(role=message["role"], content=None, tool_calls=calls)]


def with_tools_in_system(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], form: ToolForm
) -> list[Mapping[str, Any]]:
    """The messages, of which the system's has the field `tools`."""
    given: Any = list(tools)
    if form.as_text:
        given = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    has_system = bool(messages) and messages[0]["role"] == "system"
    first = messages[0] if has_system else {"role": "system", "content": ""}
    return [{**first, "tools": given}, *messages[has_system:]]


def _short(call_id: str) -> str:
    if _NINE.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _arguments(arguments: str, protect: Callable[[str], str], form: CallForm) -> Any:
    """Arguments as an object or as JSON; what is no JSON stays as it is."""
    if not form.as_text:
        with suppress(ValueError, RecursionError):
            return protected(json.loads(arguments or "{}"), protect)
    return protect(arguments or "{}")
