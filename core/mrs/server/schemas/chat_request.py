"""The body of a chat completion request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from mrs.request import MediaKind, Message, Sampling
from mrs.server.http.errors import ApiError, errors_of
from mrs.server.schemas.chat_message import (
    MOST_MESSAGES,
    MOST_TOOLS,
    ChatMessage,
    conversation,
    with_schema,
)
from mrs.server.schemas.sampling import MaxTokens
from mrs.server.schemas.structure import refuse
from mrs.server.schemas.thinking import ThinkingFields
from mrs.text.text_processor import PromptEnding
from mrs.tools.tool_request import ToolRequest, read_tools


class ChatRequest(ThinkingFields, kw_only=True):
    """Asks for the next message of a conversation; a string is one message of the user.

    prompt_logprobs         number of candidates that are returned for each token of the prompt
    continue_final_message  the reply continues the text of the last message
    add_generation_prompt   false ends the prompt after the last message
    """

    messages: str | Annotated[list[ChatMessage], Meta(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                400, "top_logprobs needs logprobs: set it to true", "top_logprobs", "invalid_value"
            )
        if self.continue_final_message and self.add_generation_prompt:
            raise ApiError(
                400,
                "continue_final_message excludes add_generation_prompt: leave one of them out",
                "continue_final_message",
                "invalid_value",
            )
        is_asked = self.prompt_logprobs is not None
        refuse("prompt_logprobs", "prompt_logprobs with a stream", is_asked and self.stream)

    @property
    def ending(self) -> PromptEnding:
        if self.continue_final_message:
            return "continued"
        return "message" if self.add_generation_prompt is False else "reply"

    @property
    def most_tokens(self) -> int | None:
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given

    @property
    def form_field(self) -> str:
        return super().form_field if self.form_fields else "tools"

    @property
    def tool_request(self) -> ToolRequest | None:
        """The tools that the model may call, if any. Raises ApiError."""
        with errors_of("tools"):
            read_tools(self.tools)
        with errors_of("tool_choice"):
            return read_tools(self.tools, self.tool_choice, self.parallel_tool_calls)

    def all_samplings(self, suggested: Mapping[str, Any]) -> list[Sampling]:
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        samplings = self.samplings(suggested, self.choices, logprobs, self.most_tokens)
        return [
            replace(
                each,
                reasoning_budget=self.budget,
                reasoning_effort=self.effort,
                prompt_logprobs=self.prompt_logprobs,
            )
            for each in samplings
        ]

    def take_conversation(
        self, *, allow_image_urls: bool, check_media: Callable[[MediaKind, str], None]
    ) -> list[Message]:
        """The messages for the model; the request has them no longer, nor the base64 in them.

        Blocks and raises as `conversation` does.
        """
        given, self.messages = self.messages, []
        messages = conversation(given, allow_image_urls=allow_image_urls, check_media=check_media)
        grammar = self.form().get("grammar")
        if self.response_format is None or grammar is None or grammar.kind != "json_schema":
            return messages
        return with_schema(messages, grammar.text)
