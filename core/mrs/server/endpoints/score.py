"""`/score`: how well texts answer other texts, pair by pair, in the form of vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from mrs.engine.prompt import Prompt
from mrs.run.loaded_model import LoadedModel
from mrs.run.ranker import relevance
from mrs.server.endpoints.identity import new_identity
from mrs.server.endpoints.vectors import vectors
from mrs.server.http.errors import ApiError, errors_of
from mrs.server.http.exchange import Exchange
from mrs.server.schemas.completion_request import MOST_TEXTS
from mrs.server.schemas.structure import refuse
from mrs.server.service import Service

ScoredTexts = str | Annotated[list[str], Meta(min_length=1, max_length=MOST_TEXTS)]


class ScoreRequest(Struct, kw_only=True):
    """Pairs of texts: one text_1 with each text_2, or as many of both.

    truncate_sequence  drop the end of a text_2 that exceeds the context
    instruction        what a good answer is, for models that read it
    """

    text_1: ScoredTexts
    text_2: ScoredTexts
    model: str | None = None
    truncate_sequence: bool | None = None
    truncate_prompt_tokens: int | None = None
    instruction: str | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Raises ApiError if the numbers do not fit."""
        first, second = (
            [each] if isinstance(each, str) else each for each in (self.text_1, self.text_2)
        )
        if len(first) not in (1, len(second)):
            message = f"text_1 has {len(first)} texts and text_2 has {len(second)}: give one text_1"
            raise ApiError(400, f"{message}, or as many of both", "text_1", "invalid_value")
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))


class Score(Struct, frozen=True, kw_only=True):
    """The score of a pair, from 0 to 1."""

    index: int
    score: float
    object: str = "score"


class ScoreUsage(Struct, frozen=True, kw_only=True):
    """The tokens of all pairs."""

    prompt_tokens: int
    total_tokens: int


class ScoreList(Struct, frozen=True, kw_only=True):
    """The scores of all pairs, in order."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: ScoreUsage
    object: str = "list"


async def score(service: Service, exchange: Exchange, request: ScoreRequest) -> ScoreList:
    """How well each text_2 answers its text_1."""
    slot = service.slot_of(exchange, request.model)
    is_cut = request.truncate_prompt_tokens is not None
    refuse("truncate_prompt_tokens", "truncate_prompt_tokens", is_cut)
    pairs = request.pairs
    model = await service.use(exchange, slot)
    prompts = await service.in_turns(exchange, _prompts(model, request, pairs))
    prompt_vectors, tokens = await vectors(service, exchange, slot, prompts, "text_2")
    with errors_of("model"):
        scores = [relevance(values) for values in prompt_vectors]
    return ScoreList(
        **new_identity("score-", exchange, slot)._asdict(),
        data=[Score(index=index, score=each) for index, each in enumerate(scores)],
        usage=ScoreUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


def _prompts(
    model: LoadedModel, request: ScoreRequest, pairs: list[tuple[str, str]]
) -> Iterator[Prompt]:
    truncate = bool(request.truncate_sequence)
    with errors_of("text_2"):
        prompts = model.prompts.ranking
        for query, text in pairs:
            yield prompts.prompt(query, text, instruction=request.instruction, truncate=truncate)
