"""The body of a chat completion request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from mrs.request import Effort, Message, Sampling
from mrs.server.http.errors import ApiError, errors_of
from mrs.server.schemas.chat_message import ChatMessage, conversation, with_schema
from mrs.server.schemas.sampling import Positive
from mrs.server.schemas.structure import StructureFields, refuse
from mrs.tools.tool_request import ToolRequest, read_tools


class ChatRequest(StructureFields, kw_only=True):
    """Asks for the next message of a conversation; a string is one message of the user.

    prompt_logprobs       the number of candidates that are returned for each token of the prompt
    enable_thinking       whether the model may think before it answers
    reasoning_effort      the same, and how long, for templates that know it; none is off
    chat_template_kwargs  further variables of the chat template
    """

    messages: str | Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                400, "top_logprobs needs logprobs: set it to true", "top_logprobs", "invalid_value"
            )
        is_asked = self.prompt_logprobs is not None
        refuse("prompt_logprobs", "prompt_logprobs with a stream", is_asked and self.stream)

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def thinking(self) -> bool | None:
        """Whether the model may think; None for the template's default."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        if self.reasoning_effort is not None:
            return self.reasoning_effort not in ("none", "off")
        given = (self.chat_template_kwargs or {}).get("enable_thinking")
        return given if isinstance(given, bool) else None

    @property
    def form_field(self) -> str:
        is_free = self.response_format is None and self.asked_grammar is None
        return "tools" if is_free else super().form_field

    @property
    def tool_request(self) -> ToolRequest | None:
        """The tools that the model may call, if any. Raises ApiError."""
        with errors_of("tools"):
            read_tools(self.tools)
        with errors_of("tool_choice"):
            return read_tools(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def template_variables(self) -> dict[str, Any]:
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None and self.thinking:
            variables["reasoning_effort"] = self.reasoning_effort
        return variables

    def all_samplings(self, suggested: Mapping[str, Any]) -> list[Sampling]:
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.samplings(suggested, self.choices, logprobs, self.most_tokens)

    def conversation(self, *, allow_image_urls: bool) -> list[Message]:
        """The messages as chat templates get them. Raises ApiError."""
        messages = conversation(self.messages, allow_image_urls=allow_image_urls)
        grammar = self.form().get("grammar")
        if self.response_format is None or grammar is None or grammar.kind != "json_schema":
            return messages
        return with_schema(messages, grammar.text)
