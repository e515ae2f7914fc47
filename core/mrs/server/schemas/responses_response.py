"""Responses of OpenAI's Responses interface, whole and as events."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from mrs.api.responses import ResponseLogprob
from mrs.server.http.wire import NamedEvent
from mrs.server.schemas.responses_items import OutputItem, OutputText, ReasoningText
from mrs.server.schemas.usage import UsageBody


class InputDetails(Struct, frozen=True, kw_only=True):
    """`cached_tokens` of the prompt came from the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct, frozen=True, kw_only=True):
    """`reasoning_tokens` of the reply were thoughts."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """The tokens of the prompt and of the reply."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: UsageBody) -> ResponseUsage:
        reasoning_tokens = usage.completion_tokens_details.reasoning_tokens
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputDetails(cached_tokens=usage.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(reasoning_tokens=reasoning_tokens),
            total_tokens=usage.total_tokens,
        )


class ResponseFailure(Struct, frozen=True, kw_only=True):
    """Why there is no complete response."""

    code: str
    message: str


class Incomplete(Struct, frozen=True, kw_only=True):
    """Why a response is not complete."""

    reason: str


class ResponseBody(Struct, frozen=True, kw_only=True):
    """A response: the items of a reply in `output`, and what the request said."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseFailure | None = None
    incomplete_details: Incomplete | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    instructions: str | None
    previous_response_id: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None = None
    temperature: float
    top_p: float
    top_logprobs: int
    presence_penalty: float
    frequency_penalty: float
    parallel_tool_calls: bool
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    text: dict[str, Any]
    reasoning: dict[str, Any]
    truncation: str
    store: bool
    background: bool = False
    metadata: dict[str, Any]
    service_tier: str = "default"
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class _Numbered(NamedEvent, frozen=True, kw_only=True):
    """An event of a response; the first one has the number 0."""

    sequence_number: int = 0


class ResponseCreated(_Numbered, frozen=True, kw_only=True, tag="response.created"):
    """The response begins: it has no items yet."""

    response: ResponseBody


class ResponseInProgress(_Numbered, frozen=True, kw_only=True, tag="response.in_progress"):
    """The reply is being computed."""

    response: ResponseBody


class ResponseCompleted(_Numbered, frozen=True, kw_only=True, tag="response.completed"):
    """The whole response."""

    response: ResponseBody


class ResponseIncomplete(_Numbered, frozen=True, kw_only=True, tag="response.incomplete"):
    """The response, whose end a limit has cut off."""

    response: ResponseBody


class ResponseFailed(_Numbered, frozen=True, kw_only=True, tag="response.failed"):
    """The response so far, and why it does not go on."""

    response: ResponseBody


class _OfItem(_Numbered, frozen=True, kw_only=True):
    """Tells of the item number `output_index`."""

    output_index: int


class ItemAdded(_OfItem, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    item: OutputItem


class ItemDone(_OfItem, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is complete."""

    item: OutputItem


class _OfPart(_OfItem, frozen=True, kw_only=True):
    """Tells of the one part of an item."""

    item_id: str
    content_index: int = 0


class PartAdded(_OfPart, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A text begins."""

    part: OutputText | ReasoningText


class PartDone(_OfPart, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A text is complete."""

    part: OutputText | ReasoningText


class OutputTextDelta(_OfPart, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """New text."""

    delta: str
    logprobs: list[ResponseLogprob]


class OutputTextDone(_OfPart, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: list[ResponseLogprob]


class ReasoningTextDelta(_OfPart, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """New thoughts."""

    delta: str


class ReasoningTextDone(_OfPart, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """All thoughts."""

    text: str


class ArgumentsDelta(
    _OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """A piece of the arguments of a call: all pieces together are JSON."""

    item_id: str
    delta: str


class ArgumentsDone(
    _OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """The arguments of a call."""

    item_id: str
    name: str
    arguments: str


ItemEvent = (
    ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
)
ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemEvent
)


class ItemList(Struct, frozen=True, kw_only=True):
    """Items of a conversation; `has_more` says whether others follow the last one."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class InputTokens(Struct, frozen=True, kw_only=True):
    """The tokens of a prompt."""

    input_tokens: int
    object: str = "response.input_tokens"


class DeletedResponse(Struct, frozen=True, kw_only=True):
    """The response of this id is no longer stored."""

    id: str
    object: str = "response"
    deleted: bool = True
