"""Definitions of tools, their calls and their results, as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mrs.errors import Unsupported
from mrs.request import Message
from mrs.text.template import ChatTemplate


def calls_of(message: Message, protect: Callable[[str], str]) -> dict[str, Any]:
    """The fields of a message that tells of calls; their arguments are objects."""
    fields: dict[str, Any] = {}
    for name in ("tool_call_id", "name"):
        if name in message:
            fields[name] = protect(str(message[name]))
    if message.get("tool_calls"):
        fields["tool_calls"] = [
            {
                "id": protect(call["id"]),
                "type": "function",
                "function": {
                    "name": protect(call["name"]),
                    "arguments": protected(_object(call["arguments"]), protect),
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


def render_with_tools(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    special_tokens: Mapping[str, str],
    thinking: bool | None,
    tools: Sequence[Mapping[str, Any]],
) -> str:
    """The prompt for messages that may have calls of tools.

    A template that fails with the arguments of calls as objects gets them as strings of JSON.
    """
    settings: dict[str, Any] = {"special_tokens": special_tokens, "thinking": thinking}
    try:
        return template.render(messages, tools=tools, **settings)
    except Unsupported:
        if not any(message.get("tool_calls") for message in messages):
            raise
        return template.render(list(map(_with_strings, messages)), tools=tools, **settings)


def _with_strings(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": _json(call["function"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


def _json(function: Mapping[str, Any]) -> str:
    return json.dumps(function["arguments"], ensure_ascii=False)


def _object(arguments: str) -> Any:
    """Arguments as an object; those that are no JSON stay a string."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
