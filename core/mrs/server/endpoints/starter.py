"""Starts the replies to a request with all that its fields and headers say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mrs.engine.loop import Outbox
from mrs.engine.prompt import Prompt
from mrs.engine.reply_events import ReplyEvents
from mrs.errors import ContextFull
from mrs.request import Sampling
from mrs.server.http.errors import ApiError, api_error
from mrs.server.http.exchange import Exchange
from mrs.server.schemas.sampling import SamplingFields
from mrs.server.service import Start, prefix_salt

if TYPE_CHECKING:
    from mrs.run.loaded_model import LoadedModel


def adapted(exchange: Exchange, samplings: Sequence[Sampling]) -> list[Sampling]:
    """The settings with the adapter that the request names as its model. Raises ApiError."""
    name = exchange.adapter
    if name is None:
        return list(samplings)
    if any(each.adapter not in (None, name) for each in samplings):
        raise ApiError(
            400, "model and adapter name two adapters: leave one out", "adapter", "invalid_value"
        )
    return [replace(each, adapter=name) for each in samplings]


class ReplyStarter:
    """Makes what `Service.start` needs for one reply; `field` of the request is its prompt."""

    def __init__(
        self,
        exchange: Exchange,
        model: LoadedModel,
        request: SamplingFields,
        field: str,
    ) -> None:
        self._model = model
        self._field = field
        self._timeout_s, self._client = exchange.left_s, exchange.sender
        self._salt = prefix_salt(exchange, request.cache_salt)

    def __call__(self, prompt: Prompt, sampling: Sampling) -> Start:
        def start(outbox: Outbox) -> ReplyEvents:
            try:
                return self._model.start(
                    prompt,
                    sampling,
                    outbox,
                    timeout_s=self._timeout_s,
                    prefix_salt=self._salt,
                    client=self._client,
                )
            except ContextFull as error:
                raise api_error(error, self._field) from error

        return start
