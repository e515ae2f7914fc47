"""The bodies of requests in the form of Anthropic's interface."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mrs.request import Effort
from mrs.server.http.errors import ApiError
from mrs.server.schemas.chat_message import MOST_MESSAGES, MOST_TOOLS
from mrs.server.schemas.chat_request import ChatRequest
from mrs.server.schemas.messages_blocks import InputMessage, TextBlock
from mrs.server.schemas.messages_conversation import chat_messages
from mrs.server.schemas.sampling import TextList
from mrs.server.schemas.thinking import ThinkingFields


class MessagesTool(Struct, kw_only=True):
    """A tool; one of a `type` other than custom is of Anthropic's own, and models do not get it."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def is_custom(self) -> bool:
        return self.type in (None, "custom")


class MessagesToolChoice(Struct, kw_only=True):
    """Whether the model may call a tool (auto), calls one (any, or the named tool), or none."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @property
    def for_chat(self) -> str | dict[str, Any]:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return {"auto": "auto", "any": "required", "none": "none"}[self.type]


class OutputFormat(Struct, kw_only=True):
    """The JSON schema that a reply matches."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, kw_only=True):
    """How long the model thinks, for templates that know it, and the form of replies."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(ThinkingFields, kw_only=True):
    """A conversation whose tokens are counted.

    thinking        whether the model thinks, and its budget; without it, the template decides
    output_config   effort, and format: the JSON schema of replies
    """

    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MOST_MESSAGES)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[MessagesTool], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: MessagesToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    stop_sequences: TextList | None = None

    def check(self) -> None:
        super().check()
        if self.messages[-1].role == "assistant":
            raise ApiError(
                400,
                "the last message is the assistant's, and replies do not continue one: end with "
                "a message of the user",
                "messages",
                "invalid_value",
            )
        budget, most = self.budget, self.max_tokens
        if budget is not None and most is not None and budget >= most:
            raise ApiError(
                400,
                f"thinking.budget_tokens is {budget}, but max_tokens is {most}: give it less",
                "thinking.budget_tokens",
                "invalid_value",
            )
        if self.choices > 1:
            raise ApiError(400, "n is more than 1: ask several times", "n", "invalid_value")

    @property
    def ignored(self) -> list[str]:
        """What has no effect, apart from unknown fields."""
        names = [
            name
            for name in ("return_progress", "stream_options")
            if getattr(self, name) is not None
        ]
        names += [
            f"tools[{index}]" for index, tool in enumerate(self.tools or ()) if not tool.is_custom
        ]
        if self.thinking is not None and self.thinking.display == "summarized":
            names.append("thinking.display")  # thoughts are shown whole
        return names

    def for_chat(self) -> ChatRequest:
        """The chat request that means the same and takes the messages over."""
        messages, self.messages = self.messages, []
        common = {name: getattr(self, name) for name in ThinkingFields.__struct_fields__}
        common["stop"] = self.stop_sequences or self.stop
        choice, config = self.tool_choice, self.output_config or OutputConfig()
        form = config.format or self.output_format
        if config.effort is not None:
            common["reasoning_effort"] = _effort(config.effort)
        if form is not None:
            schema = {"type": "json_schema", "json_schema": {"schema": form.schema}}
            common["response_format"] = schema
        return ChatRequest(
            **common,
            messages=chat_messages(self.system, messages),
            tools=[_tool(each) for each in self.tools or () if each.is_custom] or None,
            tool_choice=choice.for_chat if choice is not None else None,
            parallel_tool_calls=False
            if choice is not None and choice.disable_parallel_tool_use
            else None,
        )


class MessagesRequest(CountTokensRequest, kw_only=True):
    """Asks for the next message of a conversation, in the form of Anthropic's interface.

    system          the system prompt
    max_tokens      the most tokens of the reply; without it, as many as the context holds
    stop_sequences  texts that end the reply and are not part of it
    thinking        whether the model thinks, and its budget, which is below max_tokens; without
                    it, the chat template decides
    output_config   effort, and format: the JSON schema of the reply
    """


def _tool(tool: MessagesTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}  # in the order of OpenAI's documentation
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _effort(given: Literal["low", "medium", "high", "xhigh", "max"]) -> Effort:
    return "xhigh" if given == "max" else given
