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
    made = [ChatMessage(role="system", content=instructions)] if instructions else []
    open_reply: ChatMessage | None = None
    for item in items:
        if isinstance(item, ReasoningItem) and not item.text:
            continue
        message = _message(item)
        if message.role != "assistant":
            open_reply = None
            made.append(message)
        elif open_reply is not None and _may_follow(message, open_reply):
            thoughts = (open_reply.reasoning_content, message.reasoning_content)
            open_reply.reasoning_content = "\n".join(filter(None, thoughts)) or None
            open_reply.content = [*open_reply.parts, *message.parts] or None
            open_reply.tool_calls = [*(open_reply.tool_calls or ()), *(message.tool_calls or ())]
        else:
            open_reply = message
            made.append(message)
    return made


def _may_follow(part: ChatMessage, reply: ChatMessage) -> bool:
    """Whether a part of a reply belongs to the one before it: only calls follow text or calls."""
    return bool(part.tool_calls) or not (reply.tool_calls or reply.content)


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
