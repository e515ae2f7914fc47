"""`/v1/embeddings`: texts as vectors, from the hidden states of the model."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from mrs.architecture.pooler import PoolingKind
from mrs.engine.prompt import Prompt
from mrs.run.embedder import shortened
from mrs.run.loaded_model import LoadedModel
from mrs.server.endpoints.vectors import vectors
from mrs.server.http.errors import errors_of
from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw, raw_json
from mrs.server.schemas.completion_request import Prompts, prompts_of
from mrs.server.service import Service


class EmbeddingRequest(Struct, kw_only=True):
    """Texts or token ids to embed.

    encoding_format  a list of numbers, or base64 of 32-bit floats in little-endian order
    dimensions       number of first values to return, if the model's files allow that
    pooling          the state of the first (cls) or last token, or the mean or the largest values
                     of all; by default as the model's files say, or mean
    prompt_name      the prompt in the model's files that the texts follow, such as query
    truncate_sequence  drop the end of a text that exceeds the context (for models that make
                     replies, its beginning)
    """

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    pooling: PoolingKind | None = None
    prompt_name: str | None = None
    truncate_sequence: bool | None = None


class Embedding(Struct, frozen=True, kw_only=True):
    """A vector of length 1."""

    index: int
    embedding: Sequence[float] | str
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


async def embed(service: Service, exchange: Exchange, request: EmbeddingRequest) -> Raw:
    """The embeddings of texts."""
    slot = service.slot_of(exchange, request.model)
    model = await service.use(exchange, slot)
    with errors_of("input" if request.dimensions is None else "dimensions"):
        model.require_embeddings(request.dimensions)
    prompts = await service.in_turns(exchange, embedding_prompts(model, request))
    embeddings, tokens = await vectors(service, exchange, slot, prompts, "input", request.pooling)
    usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
    return await service.in_thread(exchange, lambda: _body(request, slot.name, embeddings, usage))


def _body(
    request: EmbeddingRequest, model: str, embeddings: list[Sequence[float]], usage: EmbeddingUsage
) -> Raw:
    """The JSON, which may be long, of an EmbeddingList."""
    as_text = request.encoding_format == "base64"
    dimensions = request.dimensions
    if dimensions is not None:
        embeddings = [array("d", shortened(each, dimensions)) for each in embeddings]
    data = [
        Embedding(index=index, embedding=_base64(each) if as_text else each)
        for index, each in enumerate(embeddings)
    ]
    return raw_json(EmbeddingList(data=data, model=model, usage=usage))


def embedding_prompts(model: LoadedModel, request: EmbeddingRequest) -> Iterator[Prompt]:
    """The prompt of each text. Raises ApiError."""
    truncate, name = bool(request.truncate_sequence), request.prompt_name
    with errors_of("input" if name is None else "prompt_name"):
        for each in prompts_of(request.input, "input"):
            yield model.prompts.embedding(each, prompt_name=name, truncate=truncate)


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()
