"""Definitions of tools, their calls and their results, as chat templates expect them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mrs.errors import Unsupported
from mrs.request import Message
from mrs.text.template import ChatTemplate

_IN_SYSTEM_MESSAGE = re.compile(r"""message\.tools|message\[['"]tools['"]\]""")
_NINE = re.compile(r"[A-Za-z0-9]{9}")


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
    variables: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    begins_reply: bool = True,
) -> str:
    """The prompt for messages that may have calls of tools.

    A template that fails with the arguments of calls as objects gets them as strings of JSON.
    """
    settings: dict[str, Any] = {
        "special_tokens": special_tokens,
        "thinking": thinking,
        "variables": variables,
        "begins_reply": begins_reply,
    }
    if "[TOOL_CALLS]" in template.source:
        messages = list(map(_with_short_ids, messages))
    if tools and _IN_SYSTEM_MESSAGE.search(template.source):
        messages = _with_tools_in_system(messages, tools)
    try:
        return template.render(messages, tools=tools, **settings)
    except Unsupported:
        if not any(message.get("tool_calls") for message in messages):
            raise
        return template.render(list(map(_with_strings, messages)), tools=tools, **settings)


def _with_short_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for Mistral's templates, which accept ids of nine letters and digits only."""
    changed = dict(message)
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short(message["tool_call_id"])
    if "tool_calls" in message:
        changed["tool_calls"] = [
            {**call, "id": _short(call["id"])} for call in message["tool_calls"]
        ]
    return changed


def _short(call_id: str) -> str:
    if _NINE.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _with_tools_in_system(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Messages for Phi-4's template, which has the functions in a field of the system message."""
    functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    has_system = bool(messages) and messages[0]["role"] == "system"
    first = messages[0] if has_system else {"role": "system", "content": ""}
    return [{**first, "tools": functions}, *messages[has_system:]]


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
