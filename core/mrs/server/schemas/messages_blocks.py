"""Blocks of messages in the form of Anthropic's interface, in requests and in replies."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType


class TextBlock(Struct, tag="text", tag_field="type", kw_only=True):
    """A text."""

    without_effect: ClassVar = ("citations",)

    text: str
    citations: list[Any] | UnsetType | None = UNSET


class ThinkingBlock(Struct, tag="thinking", tag_field="type", kw_only=True):
    """The thoughts before an answer; the signature means nothing here."""

    without_effect: ClassVar = ("signature",)

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Struct, tag="redacted_thinking", tag_field="type", kw_only=True):
    """Thoughts that only the server can read that wrote them: they are left out of the prompt."""

    has_no_effect: ClassVar = True

    data: str


class ToolUseBlock(Struct, tag="tool_use", tag_field="type", kw_only=True):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


class Base64Source(Struct, tag="base64", tag_field="type", kw_only=True):
    """The bytes of an image in base64."""

    media_type: str
    data: str

    @property
    def address(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(Struct, tag="url", tag_field="type", kw_only=True):
    """The address of an image: a data: URI or, if the server allows them, a public web address."""

    url: str

    @property
    def address(self) -> str:
        return self.url


class ImageBlock(Struct, tag="image", tag_field="type", kw_only=True):
    """An image."""

    source: Base64Source | UrlSource


class ToolResultBlock(Struct, tag="tool_result", tag_field="type", kw_only=True):
    """What the call `tool_use_id` has returned, or why it failed."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None


Block = (
    TextBlock | ImageBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
)
#: What a reply is made of.
ReplyBlock = TextBlock | ThinkingBlock | ToolUseBlock


class InputMessage(Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    @property
    def blocks(self) -> list[Block]:
        return [TextBlock(text=self.content)] if isinstance(self.content, str) else self.content
