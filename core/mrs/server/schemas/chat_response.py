"""The bodies of chat completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from mrs.api.chunk_stream import whole_calls
from mrs.api.responses import Logprobs
from mrs.events import ToolCallDelta
from mrs.server.schemas.prompt_logprobs import PromptLogprobs
from mrs.server.schemas.response import ResponseFields
from mrs.server.schemas.usage import UsageBody


class FunctionPart(Struct, frozen=True, kw_only=True):
    """A part of a call: the name of the function, or a piece of its arguments in JSON."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallPart(Struct, frozen=True, kw_only=True):
    """A part of the call `index` of a reply; only the first one has its id, type and name."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionPart


class Function(Struct, frozen=True, kw_only=True):
    """The function that is called, and its arguments in JSON."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call of a tool; a message of the role `tool` with its id brings the result."""

    id: str
    type: str = "function"
    function: Function


class Delta(Struct, frozen=True, kw_only=True):
    """What a chunk adds to the message; only the first one has the role."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """A chunk of one reply; the last one has a finish reason."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class ChatChunk(ResponseFields, frozen=True, kw_only=True):
    """A chunk of a streamed answer; the usage comes in a last chunk without choices, if wanted."""

    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    usage: UsageBody | UnsetType | None = UNSET


class ReplyMessage(Struct, frozen=True, kw_only=True):
    """A whole reply; the thoughts before it are in `reasoning_content`."""

    role: str = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Choice(Struct, frozen=True, kw_only=True):
    """One of the replies; `finish_reason` is `stop`, `length` or `tool_calls`."""

    index: int
    message: ReplyMessage
    logprobs: Logprobs | None = None
    finish_reason: str


class ChatCompletion(ResponseFields, frozen=True, kw_only=True):
    """The answer to a chat completion request."""

    choices: list[Choice]
    usage: UsageBody
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    object: str = "chat.completion"


def call_part(delta: ToolCallDelta) -> ToolCallPart:
    if delta.id is None or delta.name is None:
        return ToolCallPart(index=delta.index, function=FunctionPart(arguments=delta.arguments))
    function = FunctionPart(name=delta.name, arguments=delta.arguments)
    return ToolCallPart(index=delta.index, id=delta.id, type="function", function=function)


def calls_of(deltas: Sequence[ToolCallDelta]) -> list[ToolCall]:
    """The calls that all parts of a reply make up."""
    return [
        ToolCall(
            id=each.id or "", function=Function(name=each.name or "", arguments=each.arguments)
        )
        for each in whole_calls(deltas)
    ]
