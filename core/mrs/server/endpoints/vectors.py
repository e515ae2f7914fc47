"""The vectors of prompts, computed with all other requests to a model."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.pooler import PoolingKind
from mrs.engine.loop import Outbox
from mrs.engine.prompt import Prompt
from mrs.engine.reply_events import ReplyEvents
from mrs.errors import ContextFull
from mrs.events import Finished
from mrs.run.loaded_model import LoadedModel
from mrs.server.http.errors import api_error
from mrs.server.http.exchange import Exchange
from mrs.server.models.slot import ModelSlot
from mrs.server.service import Service, Start


async def vectors(
    service: Service,
    exchange: Exchange,
    slot: ModelSlot,
    prompts: Sequence[Prompt],
    field: str,
    kind: PoolingKind | None = None,
) -> tuple[list[Sequence[float]], int]:
    """The vector of each prompt, and the tokens of all; `field` of the request has their texts.

    Of a long list, as many as can run at once are started at a time, so that the queue has room
    for others. Raises ApiError and MrsError.
    """
    all_vectors: list[Sequence[float]] = []
    finish, tokens = service.on_finish(exchange, slot), 0
    at_once = max(slot.request.max_seqs, 1)
    for first in range(0, len(prompts), at_once):
        some = prompts[first : first + at_once]
        starts = [_start(exchange, slot.model, prompt, kind, field) for prompt in some]
        group = await service.start(exchange, slot, starts)
        async for index, event in group:
            if isinstance(event, Finished):
                finish(group.events_of(index), event)
                tokens += event.usage.prompt_tokens
        all_vectors += [group.events_of(index).sequence.vector for index in range(len(some))]
        group.close()
    return all_vectors, tokens


def _start(
    exchange: Exchange, model: LoadedModel, prompt: Prompt, kind: PoolingKind | None, field: str
) -> Start:
    def start(outbox: Outbox) -> ReplyEvents:
        timeout_s, client = exchange.left_s, exchange.sender
        try:
            return model.embedder.start(prompt, outbox, kind, timeout_s=timeout_s, client=client)
        except ContextFull as error:
            raise api_error(error, field) from error

    return start
