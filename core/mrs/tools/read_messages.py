"""Messages in OpenAI's form: what may be together in one, calls of tools and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mrs.errors import UsageError
from mrs.request import Message, ToolCallMessage

#: Fields with the thought of a message: that of most servers, and other names of it.
THOUGHT_NAMES = ("reasoning_content", "reasoning", "thinking")


def checked(message: Message) -> Message:
    """The message, if its fields are those of its role.

    Raises UsageError.
    """
    role = message["role"]
    has_more = bool(message.get("reasoning") or message.get("tool_calls"))
    if role != "assistant" and has_more:
        field = "tool_calls" if message.get("tool_calls") else "reasoning"
        raise UsageError(
            f"a message of the {role} has {field}", hint="only those of the assistant have any"
        )
    if role != "tool" and "tool_call_id" in message:
        raise UsageError(
            f"a message of the {role} has a tool_call_id",
            hint="only results, which have the role tool, have one",
        )
    if message["content"] is None and not has_more:
        raise UsageError(
            f"a message of the {role} has no content",
            hint='give a string or a list of parts, or "" for an empty text',
        )
    return message


def read_calls(given: Any) -> list[ToolCallMessage]:
    """The field `tool_calls` of a message; None and an empty list are no calls.

    Raises UsageError.
    """
    if given is None:
        return []
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UsageError("tool_calls of a message is not a list", hint="leave it out")
    return [_call(each) for each in given]


def _call(given: Any) -> ToolCallMessage:
    function = given.get("function") if isinstance(given, Mapping) else None
    fields = []
    if isinstance(function, Mapping):
        fields = [given.get("id"), function.get("name"), function.get("arguments")]
    if not fields or not all(isinstance(each, str) for each in fields):
        raise UsageError(
            "a tool call of a message is not complete",
            hint='{"id": …, "type": "function", "function": {"name": …, "arguments": "{…}"}}',
        )
    call_id, name, arguments = fields
    return ToolCallMessage(id=call_id, name=name, arguments=arguments)


def with_tool_names(messages: Iterable[Message]) -> list[Message]:
    """The messages, in which each result of a call has the name of its tool.

    Raises UsageError for a result whose call is not in an earlier message.
    """
    names: dict[str, str] = {}
    named: list[Message] = []
    for message in messages:
        names |= {call["id"]: call["name"] for call in message.get("tool_calls", ())}
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in names and "name" not in message:
                raise UsageError(
                    f"no earlier message has the tool call {call_id!r}",
                    hint="send the assistant's message with tool_calls before its results",
                )
            named.append({"name": names.get(call_id or "", ""), **message})
        else:
            named.append(message)
    return named
