"""The body of a request of OpenAI's Responses interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mrs.server.http.errors import ApiError
from mrs.server.schemas.chat_message import MOST_MESSAGES, MOST_TOOLS
from mrs.server.schemas.chat_request import ChatRequest
from mrs.server.schemas.responses_conversation import chat_messages
from mrs.server.schemas.responses_items import InputItem
from mrs.server.schemas.sampling import MaxTokens
from mrs.server.schemas.structure import refuse
from mrs.server.schemas.thinking import ReasoningConfig, ThinkingFields

_LOGPROBS = "message.output_text.logprobs"


class TextConfig(Struct, kw_only=True):
    """The form of a reply: `format` is of the type text, json_object or json_schema."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesRequest(ThinkingFields, kw_only=True):
    """Asks for the next items of a conversation.

    input                 a text, or items: messages, thoughts, calls of functions, their results
    instructions          the system prompt, of this request alone
    previous_response_id  the stored response that the conversation goes on from
    max_output_tokens     the most tokens of the reply
    store                 whether the response can be asked for later, and continued; the default
    truncation            auto drops the oldest part of a prompt that exceeds the context
    """

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_MESSAGES)]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: MaxTokens | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    store: bool | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, Any] | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises ApiError, also for what is not supported."""
        super().check()
        refuse("background", "answering in the background", self.background)
        refuse("conversation", "a stored conversation", self.conversation is not None)
        refuse("prompt", "a stored prompt", self.prompt is not None)
        refuse("n", "more than one reply", self.choices > 1)
        if self.response_format is not None and self.text_format is not None:
            raise ApiError(
                400,
                "text.format and response_format exclude each other: leave one of them out",
                "text.format",
                "invalid_value",
            )

    @property
    def ignored(self) -> list[str]:
        """What has no effect, apart from unknown fields: tools that are not functions, and more."""
        config = self.text or TextConfig()
        reasoning = self.reasoning or ReasoningConfig()
        given = {
            "text.verbosity": config.verbosity,
            "reasoning.summary": reasoning.summary,
            "return_progress": self.return_progress,
            "stream_options": self.stream_options,
        }
        return [name for name, value in given.items() if value is not None] + [
            f"tools[{index}]"
            for index, tool in enumerate(self.tools or ())
            if not _is_function(tool)
        ]

    def for_chat(self, items: Sequence[InputItem]) -> ChatRequest:
        """The chat request that means the same; `items` are those of the whole conversation."""
        common = {name: getattr(self, name) for name in ThinkingFields.__struct_fields__}
        common |= {"stream_options": None, "return_progress": None}
        if self.truncation is not None:
            common["truncate_sequence"] = self.truncation == "auto"
        if self.text_format is not None:
            common["response_format"] = _chat_format(self.text_format)
        wants_logprobs = self.top_logprobs is not None or _LOGPROBS in (self.include or ())
        return ChatRequest(
            **common,
            messages=chat_messages(self.instructions, items),
            max_completion_tokens=self.max_output_tokens,
            logprobs=wants_logprobs,
            top_logprobs=self.top_logprobs,
            tools=[_chat_tool(each) for each in self.tools or () if _is_function(each)] or None,
            tool_choice=_chat_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
        )

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def text_format(self) -> dict[str, Any] | None:
        return self.text.format if self.text is not None else None


def _is_function(tool: Mapping[str, Any]) -> bool:
    return tool.get("type") == "function"


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function in the form of a chat request, which has its fields in an object of their own."""
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _chat_choice(given: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance(given, dict):
        return given
    if given.get("type") != "allowed_tools":
        return _named(given)
    names = given.get("tools")
    tools = [_named(each) for each in names] if isinstance(names, list) else names
    allowed = {"mode": given.get("mode", "auto"), "tools": tools}
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _named(given: dict[str, Any]) -> dict[str, Any]:
    """The choice of one tool in the form of a chat request."""
    if not isinstance(given, dict) or "name" not in given:
        return given
    return {"type": "function", "function": {"name": given["name"]}}


def _chat_format(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type") != "json_schema":
        return dict(given)
    return {"type": "json_schema", "json_schema": given}
