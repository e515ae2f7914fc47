"""`/health`, `/ready` and `/v1/models`: what the server is doing."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw
from mrs.server.models.slot import ModelSlot
from mrs.server.service import Service


class ModelBody(Struct, frozen=True, kw_only=True):
    """A model; `max_model_len` is its context in tokens, while it is loaded.

    `status` is loaded, loading, unloaded or failed; `progress` is the share of its bytes that are
    loaded, `error` is why it could not be loaded, and `requests` counts those that use it or wait.
    """

    id: str
    created: int
    status: str
    progress: float
    requests: int
    error: str | UnsetType = UNSET
    object: str = "model"
    owned_by: str = "local"
    max_model_len: int | UnsetType = UNSET


class ModelList(Struct, frozen=True, kw_only=True):
    """All models of the server."""

    data: list[ModelBody]
    object: str = "list"


class Readiness(Struct, frozen=True):
    """`models` are all models, each with its progress; those that are not loaded are on demand."""

    status: str
    models: list[ModelBody]


async def health(service: Service, exchange: Exchange, _: Any) -> Raw:
    """Alive, even while the model is loading."""
    return Raw(b"OK")


async def ready(service: Service, exchange: Exchange, _: Any) -> Readiness:
    """Whether the model is loaded; until then an error with the progress."""
    service.models.check_open()
    return Readiness("ready", [model_body(each) for each in service.models.slots])


async def metrics(service: Service, exchange: Exchange, _: Any) -> Raw:
    """Counters and histograms for Prometheus."""
    return Raw(service.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")


async def models(service: Service, exchange: Exchange, _: Any) -> ModelList:
    """The models of this server."""
    return ModelList(data=[model_body(each) for each in service.models.slots])


async def model(service: Service, exchange: Exchange, _: Any) -> ModelBody:
    """One of the models."""
    return model_body(service.models.named(exchange.path_params["model_id"]))


def model_body(slot: ModelSlot) -> ModelBody:
    return ModelBody(
        id=slot.name,
        created=slot.created,
        status=slot.state,
        progress=slot.progress,
        requests=slot.users + len(slot.waiting),
        error=UNSET if slot.error is None else slot.error,
        max_model_len=slot.model.context_tokens if slot.is_loaded else UNSET,
    )
