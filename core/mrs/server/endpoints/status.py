"""`/health`, `/ready` and `/v1/models`: what the server is doing."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw
from mrs.server.service import Service


class ModelBody(Struct, frozen=True, kw_only=True):
    """A model; `max_model_len` is its context in tokens, once it is loaded."""

    id: str
    created: int
    status: str
    object: str = "model"
    owned_by: str = "local"
    max_model_len: int | UnsetType = UNSET


class ModelList(Struct, frozen=True, kw_only=True):
    """All models of the server."""

    data: list[ModelBody]
    object: str = "list"


class Readiness(Struct, frozen=True):
    """`progress` is the share of the model's bytes that are loaded."""

    status: str
    progress: float


async def health(service: Service, exchange: Exchange, _: Any) -> Raw:
    """Alive, even while the model is loading."""
    return Raw(b"OK")


async def ready(service: Service, exchange: Exchange, _: Any) -> Readiness:
    """Whether the model is loaded; until then an error with the progress."""
    assert service.slot.model
    return Readiness("ready", 1.0)


async def metrics(service: Service, exchange: Exchange, _: Any) -> Raw:
    """Counters and histograms for Prometheus."""
    return Raw(service.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")


async def models(service: Service, exchange: Exchange, _: Any) -> ModelList:
    """The models of this server."""
    return ModelList(data=[_model(service)])


async def model(service: Service, exchange: Exchange, _: Any) -> ModelBody:
    """One of the models."""
    service.slot.check_name(exchange.path_params["model_id"])
    return _model(service)


def _model(service: Service) -> ModelBody:
    slot = service.slot
    is_ready = slot.state == "ready"
    return ModelBody(
        id=slot.name,
        created=slot.created,
        status="loaded" if is_ready else slot.state,
        max_model_len=slot.model.context_tokens if is_ready else UNSET,
    )
