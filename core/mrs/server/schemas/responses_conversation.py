"""From the items of OpenAI's Responses interface to the messages of a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mrs.server.http.exchange import invalid_field
from mrs.server.schemas.chat_message import (
    ChatMessage,
    ImagePart,
    Part,
    RefusalPart,
    TextPart,
    VideoPart,
)
from mrs.server.schemas.responses_items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputImage,
    InputItem,
    InputMessageItem,
    InputPart,
    InputVideo,
    ReasoningItem,
    Refusal,
)


def read_items(given: str | Sequence[dict[str, Any]]) -> list[InputItem]:
    """The items of the field `input`, of which those without a type are messages.

    Raises ApiError.
    """
    if isinstance(given, str):
        return [InputMessageItem(role="user", content=given)]
    items = [{"type": "message", **each} for each in given]
    try:
        return msgspec.convert(items, list[InputItem])
    except msgspec.ValidationError as error:
        raise invalid_field(error, "input") from None


def chat_messages(instructions: str | None, items: Sequence[InputItem]) -> list[ChatMessage]:
    """The messages of a chat request: thoughts, a text and calls in a row are one message."""
    chat = [ChatMessage(role="system", content=instructions)] if instructions else []
    groups: list[list[ChatMessage]] = []
    for item in items:
        if isinstance(item, ReasoningItem) and not item.text:
            continue
        message = _message(item)
        if groups and _may_follow(message, groups[-1][-1]):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [*chat, *map(_joined, groups)]


def _may_follow(part: ChatMessage, last: ChatMessage) -> bool:
    """Whether both are parts of one reply: only calls follow text or calls."""
    are_replies = part.role == last.role == "assistant"
    return are_replies and bool(part.tool_calls or not (last.tool_calls or last.content))


def _joined(parts: Sequence[ChatMessage]) -> ChatMessage:
    """One message of all; joined at once, as the time to join two grows with their length."""
    if len(parts) == 1:
        return parts[0]
    thoughts = filter(None, (each.reasoning_content for each in parts))
    return ChatMessage(
        role=parts[0].role,
        content=[part for each in parts for part in each.parts] or None,
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=[call for each in parts for call in each.tool_calls or ()],
    )


def _message(item: InputItem) -> ChatMessage:
    if isinstance(item, FunctionCallItem):
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        return ChatMessage(role="assistant", tool_calls=[call])
    if isinstance(item, FunctionOutputItem):
        return ChatMessage(role="tool", content=_content(item.output), tool_call_id=item.call_id)
    if isinstance(item, ReasoningItem):
        return ChatMessage(role="assistant", reasoning_content=item.text)
    return ChatMessage(role=item.role, content=_content(item.content))


def _content(given: str | Sequence[InputPart]) -> str | list[Part]:
    return given if isinstance(given, str) else [_part(each) for each in given]


def _part(given: InputPart) -> Part:
    if isinstance(given, InputImage):
        return ImagePart(image_url=given.image_url)
    if isinstance(given, InputVideo):
        return VideoPart(video_url=given.video_url)
    if isinstance(given, Refusal):
        return RefusalPart(refusal=given.refusal)
    return TextPart(text=given.text)
