"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from msgspec import UNSET

from mrs.api.chunk_stream import logprobs_of
from mrs.engine.prompt import Prompt
from mrs.events import TokenLogprob
from mrs.request import Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.server.endpoints.after_loading import after_loading
from mrs.server.endpoints.identity import Identity, new_identity
from mrs.server.endpoints.starter import ReplyStarter, adapted
from mrs.server.http.errors import errors_of
from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw, raw_json
from mrs.server.models.slot import ModelSlot
from mrs.server.replies.choice_text import ReplyPiece
from mrs.server.replies.reader import ChoiceEnd, ReplyReader
from mrs.server.schemas.chat_request import ChatRequest
from mrs.server.schemas.chat_response import (
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    Delta,
    ReplyMessage,
    call_part,
    calls_of,
)
from mrs.server.schemas.prompt_logprobs import prompt_logprobs
from mrs.server.service import Service


async def chat(
    service: Service, exchange: Exchange, request: ChatRequest
) -> ChatCompletion | Raw | AsyncIterator[ChatChunk]:
    """The next message of a conversation, or its chunks."""
    slot = service.slot_of(exchange, request.model, takes_adapters=True)
    request.check()
    identity = new_identity("chatcmpl-", exchange, slot)

    async def chunks() -> AsyncIterator[ChatChunk]:
        return _chunks(await start_chat(service, exchange, slot, request), request, identity)

    if request.wants_progress:
        empty = ChatChunk(choices=[], **identity._asdict())
        return after_loading(service.loading(exchange, slot), empty, chunks)
    await service.use(exchange, slot)
    if request.stream:
        return await chunks()
    reader = await start_chat(service, exchange, slot, request)
    pieces, reasons = await reader.read_all()
    if not request.logprobs and request.prompt_logprobs is None:
        return _completion(reader, identity, pieces, reasons)
    # Twenty candidates for each token take so long that others would wait.
    return await service.in_thread(
        exchange, lambda: raw_json(_completion(reader, identity, pieces, reasons))
    )


async def start_chat(
    service: Service, exchange: Exchange, slot: ModelSlot, request: ChatRequest
) -> ReplyReader:
    """The replies, of a model that is in use."""
    model = slot.model
    service.admit(exchange, slot, request.choices)  # before long texts are read

    if request is not exchange.kept[0]:  # made of that
        exchange.kept.append(request)

    def read() -> tuple[Prompt, list[Sampling], int]:
        samplings = adapted(exchange, request.all_samplings(model.suggested_sampling))
        prompt = chat_prompt(service, model, request, samplings[0], owner=exchange.salt)
        return prompt, samplings, exchange.kept_bytes()

    prompt, samplings, kept_bytes = await service.in_thread(exchange, read)
    exchange.give_back(kept_bytes)  # the messages are tokens now
    start = ReplyStarter(exchange, model, request, "messages")
    group = await service.start(exchange, slot, [start(prompt, each) for each in samplings])
    finish = service.on_finish(exchange, slot)
    shown = request.thoughts_shown if model.thinks else "inline"
    return ReplyReader(group, finish, choices=request.choices, thoughts=shown)


def chat_prompt(
    service: Service,
    model: LoadedModel,
    request: ChatRequest,
    sampling: Sampling,
    *,
    must_fit: bool = True,
    owner: bytes = b"",
) -> Prompt:
    """The prompt of a conversation; it blocks while images are fetched. Raises ApiError.

    One that need not fit into the context is only counted.
    """
    tools, form = request.tool_request, request.form_field
    fields = {"variables": "chat_template_kwargs", "thinking": "enable_thinking", "form": form}
    with errors_of("messages", **fields):
        return model.prompts.chat(
            request.take_conversation(
                allow_image_urls=service.settings.allow_image_urls,
                check_media=model.prompts.check_media,
            ),
            sampling,
            thinking=request.is_thinking,
            ending=request.ending,
            **request.cut,
            variables=request.chat_template_kwargs,
            tools=tools,
            must_fit=must_fit,
            owner=owner,
        )


async def _chunks(
    reader: ReplyReader, request: ChatRequest, identity: Identity
) -> AsyncIterator[ChatChunk]:
    usage: Any = None if request.wants_usage else UNSET

    def chunk(index: int, delta: Delta, **more: Any) -> ChatChunk:
        choice = ChunkChoice(index=index, delta=delta, **more)
        return ChatChunk(choices=[choice], usage=usage, **identity._asdict())

    for index in range(request.choices):
        yield chunk(index, Delta(role="assistant", content=""))
    async for index, event in reader.read():
        if isinstance(event, ChoiceEnd):
            yield chunk(index, Delta(), finish_reason=event.reason)
        else:
            yield chunk(index, _delta(event), logprobs=logprobs_of(event.logprobs))
    if request.wants_usage:
        yield ChatChunk(choices=[], usage=reader.usage, **identity._asdict())


def _delta(piece: ReplyPiece) -> Delta:
    if piece.call is not None:
        return Delta(tool_calls=[call_part(piece.call)])
    if piece.is_thought:
        return Delta(reasoning_content=piece.text)
    return Delta(content=piece.text)


def _completion(
    reader: ReplyReader, identity: Identity, pieces: list[list[ReplyPiece]], reasons: list[str]
) -> ChatCompletion:
    choices = [
        Choice(
            index=index,
            message=_message(each),
            logprobs=logprobs_of(_logprobs(each)),
            finish_reason=reasons[index],
        )
        for index, each in enumerate(pieces)
    ]
    return ChatCompletion(
        choices=choices,
        usage=reader.usage,
        prompt_logprobs=prompt_logprobs(reader.events_of(0)),
        **identity._asdict(),
    )


def _message(pieces: list[ReplyPiece]) -> ReplyMessage:
    thoughts = "".join(piece.text for piece in pieces if piece.is_thought)
    answer = "".join(piece.text for piece in pieces if not piece.is_thought)
    calls = calls_of([piece.call for piece in pieces if piece.call is not None])
    return ReplyMessage(
        content=answer if answer.strip() or not calls else None,
        reasoning_content=thoughts or UNSET,
        tool_calls=calls or UNSET,
    )


def _logprobs(pieces: list[ReplyPiece]) -> list[TokenLogprob]:
    return [each for piece in pieces for each in piece.logprobs]
