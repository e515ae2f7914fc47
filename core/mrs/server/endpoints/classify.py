"""`/v1/classify`: the classes that texts belong to, in the form of vLLM."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec import Struct

from mrs.engine.prompt import Prompt
from mrs.run.classifier import Classified, classified
from mrs.run.loaded_model import LoadedModel
from mrs.server.endpoints.vectors import vectors
from mrs.server.http.errors import errors_of
from mrs.server.http.exchange import Exchange
from mrs.server.schemas.completion_request import Prompts, prompts_of
from mrs.server.service import Service


class ClassifyRequest(Struct, kw_only=True):
    """Texts or token ids to classify.

    text_pair          a text that each of them forms a pair with, for models of two texts
    truncate_sequence  drop the end of what exceeds the context: of the `text_pair`, if there is one
    """

    input: Prompts
    model: str | None = None
    text_pair: str | None = None
    truncate_sequence: bool | None = None


class TextClass(Struct, frozen=True, kw_only=True):
    """The best class of a text, and the probability of each class in the order of the model's."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyUsage(Struct, frozen=True, kw_only=True):
    """The tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class ClassifyResponse(Struct, frozen=True, kw_only=True):
    """The class of each text, in order."""

    id: str
    created: int
    model: str
    data: list[TextClass]
    usage: ClassifyUsage
    object: str = "list"


async def classify(
    service: Service, exchange: Exchange, request: ClassifyRequest
) -> ClassifyResponse:
    """The classes of texts."""
    texts = prompts_of(request.input, "input")
    slot = service.slot_of(exchange, request.model)
    model = await service.use(exchange, slot)
    with errors_of("model"):
        pooler = model.require_classes()
    prompts = await service.in_turns(exchange, _prompts(model, request, texts))
    scores, tokens = await vectors(service, exchange, slot, prompts, "input")
    return ClassifyResponse(
        id=f"classify-{exchange.id}",
        created=int(time.time()),
        model=slot.name,
        data=[_text_class(index, classified(pooler, each, 0)) for index, each in enumerate(scores)],
        usage=ClassifyUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


def _text_class(index: int, found: Classified) -> TextClass:
    probabilities = list(found.probabilities.values())
    return TextClass(
        index=index, label=found.label, probs=probabilities, num_classes=len(probabilities)
    )


def _prompts(
    model: LoadedModel, request: ClassifyRequest, texts: Sequence[str | list[int]]
) -> Iterator[Prompt]:
    pair, truncate = request.text_pair, bool(request.truncate_sequence)
    with errors_of("input"):
        for each in texts:
            yield model.prompts.classification(each, pair, truncate=truncate)
