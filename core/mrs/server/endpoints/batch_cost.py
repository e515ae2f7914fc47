"""What a line of a batch costs, by the same reading that answers it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from starlette.types import Message

from mrs.engine.prompt import Prompt
from mrs.run.loaded_model import LoadedModel
from mrs.server.batches.lines import BatchLine
from mrs.server.batches.runner import scope_of
from mrs.server.endpoints.chat import chat_prompt
from mrs.server.endpoints.completions import completion_prompts
from mrs.server.endpoints.embeddings import EmbeddingRequest, embedding_prompts
from mrs.server.http.errors import ApiError
from mrs.server.http.exchange import Exchange
from mrs.server.schemas.chat_request import ChatRequest
from mrs.server.schemas.completion_request import CompletionRequest
from mrs.server.service import Service

_TYPES: dict[str, type[ChatRequest | CompletionRequest | EmbeddingRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
}


class BatchCost(NamedTuple):
    """Tokens of prompts, and the most of replies, of which there are so many."""

    prompt_tokens: float = 0.0
    most_reply_tokens: float = 0.0
    replies: float = 0.0

    def plus(self, other: BatchCost) -> BatchCost:
        return BatchCost(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> BatchCost:
        return BatchCost(*(factor * each for each in self))


async def batch_cost(service: Service, line: BatchLine) -> BatchCost:
    """The cost of a line; of one that will be refused, nothing."""
    exchange = Exchange(scope_of(line.url, "forecast"), _receive, _send)
    try:
        request = exchange.decode(bytes(line.body), _TYPES[line.url], service.most_signs)
        slot = service.slot_of(exchange, request.model, takes_adapters=True)
        model = await service.use(exchange, slot)
        return await service.in_thread(exchange, lambda: _cost(service, model, request))
    except (ApiError, msgspec.MsgspecError):
        return BatchCost()
    finally:
        for clean in reversed(exchange.cleanup):
            clean()


def _cost(
    service: Service,
    model: LoadedModel,
    request: ChatRequest | CompletionRequest | EmbeddingRequest,
) -> BatchCost:
    prompts: list[Prompt]
    if isinstance(request, EmbeddingRequest):
        prompts = list(embedding_prompts(model, request))
        return BatchCost(sum(len(each.ids) for each in prompts))
    request.check()
    samplings = request.all_samplings(model.suggested_sampling)
    if isinstance(request, ChatRequest):
        prompts = [chat_prompt(service, model, request, samplings[0])]
    else:
        prompts = list(completion_prompts(model, request, samplings[0]))
    cost = BatchCost()
    for prompt in prompts:
        room = max(model.context_tokens - len(prompt.ids), 0)
        most = sum(min(room, each.max_tokens or room) for each in samplings)
        cost = cost.plus(BatchCost(len(prompt.ids), most, len(samplings)))
    return cost


async def _receive() -> Message:
    """Nobody waits for the answer."""
    return {"type": "http.disconnect"}


async def _send(message: Message) -> None:
    """Nobody reads it."""
