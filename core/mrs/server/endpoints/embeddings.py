"""`/v1/embeddings`: texts as vectors, from the hidden states of the decoder."""

from __future__ import annotations

import base64
from typing import Literal

import numpy as np
from msgspec import Struct

from mrs.architecture.readout import PoolingKind
from mrs.engine.loop import Outbox
from mrs.engine.prompt import Prompt
from mrs.engine.reply_events import ReplyEvents
from mrs.errors import ContextFull
from mrs.events import Finished
from mrs.loaded_model import LoadedModel
from mrs.request import Sampling
from mrs.server.http.errors import api_error
from mrs.server.http.exchange import Exchange
from mrs.server.schemas.completion_request import Prompts, prompts_of
from mrs.server.schemas.structure import refuse
from mrs.server.service import Service, Start


class EmbeddingRequest(Struct, kw_only=True):
    """Texts or token ids to embed.

    encoding_format  a list of numbers, or base64 of 32-bit floats in little-endian order
    pooling          mean of the hidden states of all tokens, or the state of the last token
    truncate_sequence  drop the oldest part of a text that exceeds the context
    """

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    pooling: PoolingKind | None = None
    truncate_sequence: bool | None = None


class Embedding(Struct, frozen=True, kw_only=True):
    """A vector of length 1."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(Struct, frozen=True, kw_only=True):
    """The tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, frozen=True, kw_only=True):
    """The embedding of each text, in order."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


async def embed(service: Service, exchange: Exchange, request: EmbeddingRequest) -> EmbeddingList:
    """The embeddings of texts."""
    slot = service.models.named(request.model)
    refuse("dimensions", request.dimensions is not None)
    model = await service.use(exchange, slot)
    prompts = await service.in_thread(lambda: _prompts(model, request))
    starts = [_start(service, model, prompt, request.pooling or "mean") for prompt in prompts]
    group = service.start(exchange, slot, starts)
    finish, tokens = service.on_finish(exchange, slot), 0
    async for index, event, _ in group:
        if isinstance(event, Finished):
            finish(group.events_of(index), event)
            tokens += event.usage.prompt_tokens
    as_text = request.encoding_format == "base64"
    vectors = [_vector(group.events_of(index)) for index in range(len(prompts))]
    return EmbeddingList(
        data=[
            Embedding(index=index, embedding=_base64(vector) if as_text else vector)
            for index, vector in enumerate(vectors)
        ],
        model=slot.name,
        usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


def _prompts(model: LoadedModel, request: EmbeddingRequest) -> list[Prompt]:
    truncate = bool(request.truncate_sequence)
    try:
        return [
            model.completion_prompt(each, Sampling(max_tokens=1), truncate=truncate)
            for each in prompts_of(request.input, "input")
        ]
    except Exception as error:
        raise api_error(error, "input") from error


def _start(service: Service, model: LoadedModel, prompt: Prompt, kind: PoolingKind) -> Start:
    def start(outbox: Outbox) -> ReplyEvents:
        timeout_s = service.settings.request_timeout_s
        try:
            return model.embedder.start(prompt, outbox, kind, timeout_s=timeout_s)
        except ContextFull as error:
            raise api_error(error, "input") from error

    return start


def _vector(events: ReplyEvents) -> list[float]:
    pooling = events.sequence.pooling
    assert pooling is not None
    return pooling.values


def _base64(vector: list[float]) -> str:
    return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()
