"""Replies in the form of Anthropic's interface, whole and as events."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mrs.server.http.wire import NamedEvent
from mrs.server.schemas.messages_blocks import ReplyBlock
from mrs.server.schemas.usage import UsageBody

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessagesUsage(Struct, frozen=True, kw_only=True):
    """`input_tokens` of the prompt were computed, and the others came from the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, usage: UsageBody) -> MessagesUsage:
        return cls(
            input_tokens=usage.prompt_tokens - usage.cached_tokens,
            cache_read_input_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
        )


class MessageBody(Struct, frozen=True, kw_only=True, tag="message", tag_field="type"):
    """A reply; `stop_sequence` is the text of the request that has ended it."""

    id: str
    role: str = "assistant"
    model: str
    content: list[ReplyBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class MessageStart(NamedEvent, frozen=True, kw_only=True, tag="message_start"):
    """The reply begins: it has no blocks yet."""

    message: MessageBody


class BlockStart(NamedEvent, frozen=True, kw_only=True, tag="content_block_start"):
    """Block number `index` begins."""

    index: int
    content_block: ReplyBlock


class AddedText(Struct, frozen=True, kw_only=True, tag="text_delta", tag_field="type"):
    """New text."""

    text: str


class AddedThinking(Struct, frozen=True, kw_only=True, tag="thinking_delta", tag_field="type"):
    """New thoughts."""

    thinking: str


class AddedJson(Struct, frozen=True, kw_only=True, tag="input_json_delta", tag_field="type"):
    """A piece of the arguments of a call: all pieces together are JSON."""

    partial_json: str


class BlockDelta(NamedEvent, frozen=True, kw_only=True, tag="content_block_delta"):
    """What is added to block number `index`."""

    index: int
    delta: AddedText | AddedThinking | AddedJson


class BlockStop(NamedEvent, frozen=True, kw_only=True, tag="content_block_stop"):
    """Block number `index` is complete."""

    index: int


class MessageEnd(Struct, frozen=True, kw_only=True):
    """Why the reply has ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(NamedEvent, frozen=True, kw_only=True, tag="message_delta"):
    """The reply's end, and the tokens of all of it."""

    delta: MessageEnd
    usage: MessagesUsage


class MessageStop(NamedEvent, frozen=True, kw_only=True, tag="message_stop"):
    """The last event of a stream."""


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class TokenCount(Struct, frozen=True, kw_only=True):
    """The tokens of a prompt."""

    input_tokens: int
