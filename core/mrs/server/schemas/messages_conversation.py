"""From the messages of Anthropic's interface to those of a chat request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile

from mrs.server.http.errors import ApiError
from mrs.server.schemas.chat_message import ChatMessage, ImagePart, Part, TextPart
from mrs.server.schemas.messages_blocks import (
    ImageBlock,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)


def chat_messages(
    system: str | Sequence[TextBlock] | None, messages: Sequence[InputMessage]
) -> list[ChatMessage]:
    """The messages of a chat request.

    Messages of the user in a row become one, because that is what this interface says of them.
    Results of tools, which are the first blocks of such a message, become messages of their own.
    Raises ApiError for one after other blocks.
    """
    chat: list[ChatMessage] = []
    if system:
        text = system if isinstance(system, str) else "\n\n".join(each.text for each in system)
        chat.append(ChatMessage(role="system", content=text))
    for index, message in enumerate(messages):
        if message.role == "assistant":
            chat.append(_assistant(message))
            continue
        results = list(takewhile(_is_result, message.blocks))
        chat += [_result(each) for each in results if isinstance(each, ToolResultBlock)]
        others = message.blocks[len(results) :]
        if any(map(_is_result, others)):
            raise ApiError(
                400,
                "a tool_result is behind other blocks: put the results first",
                f"messages[{index}].content",
                "invalid_value",
            )
        parts = _parts(others)
        before = chat[-1].content if chat and message.role == chat[-1].role == "user" else None
        if parts and isinstance(before, list):
            before += [TextPart(text="\n\n"), *parts]
        elif parts or not results:
            chat.append(ChatMessage(role=message.role, content=parts))
    return chat


def _assistant(message: InputMessage) -> ChatMessage:
    """Thoughts, text and calls in one message."""
    thoughts = [each.thinking for each in message.blocks if isinstance(each, ThinkingBlock)]
    calls = [
        {"id": each.id, "function": {"name": each.name, "arguments": json.dumps(each.input)}}
        for each in message.blocks
        if isinstance(each, ToolUseBlock)
    ]
    parts = _parts(message.blocks)
    return ChatMessage(
        role="assistant",
        content=parts if parts or not (thoughts or calls) else None,
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _is_result(block: object) -> bool:
    return isinstance(block, ToolResultBlock)


def _result(block: ToolResultBlock) -> ChatMessage:
    """What a call has returned; templates have no other place for an error than its text."""
    content = block.content or ""
    parts: list[Part] = [TextPart(text="Error: ")] if block.is_error else []
    parts += [TextPart(text=content)] if isinstance(content, str) else _parts(content)
    return ChatMessage(
        role="tool",
        content=parts,
        tool_call_id=block.tool_use_id,
    )


def _parts(blocks: Sequence[object]) -> list[Part]:
    """The texts and images."""
    parts: list[Part] = []
    for each in blocks:
        if isinstance(each, TextBlock):
            parts.append(TextPart(text=each.text))
        elif isinstance(each, ImageBlock):
            parts.append(ImagePart(image_url=each.source.address))
    return parts
