"""From the messages of Anthropic's interface to those of a chat request."""

from __future__ import annotations

import json
from collections.abc import Sequence

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
    Results of tools, which are blocks of such a message, become messages of their own.
    """
    made: list[ChatMessage] = []
    if system:
        text = system if isinstance(system, str) else "\n\n".join(each.text for each in system)
        made.append(ChatMessage(role="system", content=text))
    for message in messages:
        if message.role == "assistant":
            made.append(_assistant(message))
            continue
        results = [each for each in message.blocks if isinstance(each, ToolResultBlock)]
        made += [_result(each) for each in results]
        parts = _parts([each for each in message.blocks if not isinstance(each, ToolResultBlock)])
        if parts and made and message.role == made[-1].role == "user":
            made[-1].content = [*made[-1].parts, TextPart(text="\n\n"), *parts]
        elif parts or not results:
            made.append(ChatMessage(role=message.role, content=parts))
    return made


def _assistant(message: InputMessage) -> ChatMessage:
    """Thoughts, text and calls in one message."""
    thoughts = [each.thinking for each in message.blocks if isinstance(each, ThinkingBlock)]
    calls = [
        {"id": each.id, "function": {"name": each.name, "arguments": json.dumps(each.input)}}
        for each in message.blocks
        if isinstance(each, ToolUseBlock)
    ]
    return ChatMessage(
        role="assistant",
        content=_parts(message.blocks),
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _result(block: ToolResultBlock) -> ChatMessage:
    content = block.content or ""
    return ChatMessage(
        role="tool",
        content=content if isinstance(content, str) else _parts(content),
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
