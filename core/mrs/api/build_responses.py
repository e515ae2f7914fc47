"""Make responses and chunks of responses from replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from mrs.api.chunk_stream import Chunk, Collected, total_usage
from mrs.api.responses import (
    CalledFunction,
    ChatCompletionChunkResponse,
    ChatCompletionResponse,
    Choice,
    ChunkChoice,
    CompletionChoice,
    CompletionChunkResponse,
    CompletionResponse,
    Logprobs,
    ResponseLogprob,
    ResponseMessage,
    ToolCallResponse,
)


class Identity(TypedDict):
    """What all chunks of one response have in common."""

    id: str
    created: int
    model: str


class _ChoiceFields(TypedDict):
    index: int
    finish_reason: str | None
    logprobs: Logprobs | None
    prompt_logprobs: list[ResponseLogprob] | None


def chat_response(replies: Sequence[Collected], identity: Identity) -> ChatCompletionResponse:
    choices = [
        Choice(message=_message(reply), **_choice_fields(reply, index))
        for index, reply in enumerate(replies)
    ]
    usage = total_usage([reply.usage for reply in replies])
    return ChatCompletionResponse(choices=choices, usage=usage, **identity)


def chat_chunk(chunk: Chunk, identity: Identity) -> ChatCompletionChunkResponse:
    choice = ChunkChoice(delta=_message(chunk), **_choice_fields(chunk, chunk.index))
    return ChatCompletionChunkResponse(choices=[choice], usage=chunk.usage, **identity)


def completion_response(
    replies: Sequence[Collected], identity: Identity, start: str
) -> CompletionResponse:
    """The response whose texts all begin with `start`."""
    choices = [
        CompletionChoice(text=start + reply.text, **_choice_fields(reply, index))
        for index, reply in enumerate(replies)
    ]
    usage = total_usage([reply.usage for reply in replies])
    return CompletionResponse(choices=choices, usage=usage, **identity)


def completion_chunk(chunk: Chunk, identity: Identity) -> CompletionChunkResponse:
    choice = CompletionChoice(text=chunk.text, **_choice_fields(chunk, chunk.index))
    return CompletionChunkResponse(choices=[choice], usage=chunk.usage, **identity)


def _message(reply: Collected | Chunk) -> ResponseMessage:
    calls = [
        ToolCallResponse(each.index, each.id, CalledFunction(each.name, each.arguments))
        for each in reply.calls
    ]
    return ResponseMessage(reply.text, tool_calls=calls or None)


def _choice_fields(reply: Collected | Chunk, index: int) -> _ChoiceFields:
    return {
        "index": index,
        "finish_reason": reply.finish_reason,
        "logprobs": reply.logprobs,
        "prompt_logprobs": reply.prompt_logprobs if isinstance(reply, Collected) else None,
    }
