"""`/v1/rerank`: documents in the order in which they answer a question, in the form of Jina."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from mrs.engine.prompt import Prompt
from mrs.run.loaded_model import LoadedModel
from mrs.run.ranker import best_first
from mrs.server.endpoints.vectors import vectors
from mrs.server.http.errors import errors_of
from mrs.server.http.exchange import Exchange
from mrs.server.schemas.completion_request import MOST_TEXTS
from mrs.server.service import Service


class Document(Struct):
    """A document as an object."""

    text: str


class RerankRequest(Struct, kw_only=True):
    """A question, and documents to rank by how well they answer it.

    top_n              how many of the best documents are returned; by default all
    return_documents   whether their texts are, too
    truncate_sequence  drop the end of a document that exceeds the context
    instruction        what a good answer is, for models that read it
    """

    query: str
    documents: Annotated[list[str | Document], Meta(min_length=1, max_length=MOST_TEXTS)]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    truncate_sequence: bool | None = None
    instruction: str | None = None

    @property
    def texts(self) -> list[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]


class Ranked(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A document by its index in the request; the score is from 0 to 1."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankUsage(Struct, frozen=True, kw_only=True):
    """The tokens of all pairs of the question and a document."""

    total_tokens: int


class RerankResponse(Struct, frozen=True, kw_only=True):
    """The best documents first."""

    model: str
    results: list[Ranked]
    usage: RerankUsage
    object: str = "list"


async def rerank(service: Service, exchange: Exchange, request: RerankRequest) -> RerankResponse:
    """Documents in the order in which they answer a question."""
    slot = service.slot_of(exchange, request.model)
    model = await service.use(exchange, slot)
    prompts = await service.in_turns(exchange, _prompts(model, request))
    scored, tokens = await vectors(service, exchange, slot, prompts, "documents")
    texts = request.texts if request.return_documents else None
    with errors_of("model"):
        best = best_first(scored)[: request.top_n]
    return RerankResponse(
        model=slot.name,
        results=[
            Ranked(
                index=index,
                relevance_score=score,
                document=Document(texts[index]) if texts else None,
            )
            for index, score in best
        ],
        usage=RerankUsage(total_tokens=tokens),
    )


def _prompts(model: LoadedModel, request: RerankRequest) -> Iterator[Prompt]:
    truncate = bool(request.truncate_sequence)
    with errors_of("documents"):
        prompts = model.prompts.ranking
        for text in request.texts:
            yield prompts.prompt(
                request.query, text, instruction=request.instruction, truncate=truncate
            )
