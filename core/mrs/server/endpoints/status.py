"""`/health`, `/ready` and `/v1/models`: what the server is doing."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from mrs.server.http.exchange import Exchange
from mrs.server.http.pages import page_of
from mrs.server.http.wire import Raw
from mrs.server.models.slot import ModelSlot
from mrs.server.service import Service


class ModelBody(Struct, frozen=True, kw_only=True):
    """A model; `max_model_len` is its context in tokens, while it is loaded.

    `status` is loaded, loading, unloaded or failed; `progress` is the share of its bytes that are
    loaded, `error` is why it could not be loaded, and `requests` counts those that use it or wait.
    An adapter has the model that it changes as its `parent`.
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
    parent: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    display_name: str | UnsetType = UNSET
    created_at: str | UnsetType = UNSET


class ModelList(Struct, frozen=True, kw_only=True):
    """All models of the server, by each of their names.

    A request with the header `anthropic-version` gets the fields of Anthropic's interface, too.
    """

    data: list[ModelBody]
    object: str = "list"
    first_id: str | UnsetType | None = UNSET
    last_id: str | UnsetType | None = UNSET
    has_more: bool | UnsetType = UNSET


class Version(Struct, frozen=True):
    """The version of mrs."""

    version: str


class Health(Struct, frozen=True):
    """The server answers."""

    status: str


class Readiness(Struct, frozen=True):
    """`models` are all models, each with its progress; those that are not loaded are on demand."""

    status: str
    models: list[ModelBody]


async def health(service: Service, exchange: Exchange, _: Any) -> Health:
    """Alive; status 503 as long as the first model is loading."""
    service.models.check_started()
    return Health("ok")


async def ready(service: Service, exchange: Exchange, _: Any) -> Readiness:
    """Whether requests should come: status 503 until the model is loaded, with the progress, and
    once the server is to stop."""
    service.models.check_open()
    return Readiness("ready", [model_body(each) for each in service.models.slots])


async def version(service: Service, exchange: Exchange, _: Any) -> Version:
    """The version of mrs."""
    try:
        return Version(metadata.version("mrs"))
    except metadata.PackageNotFoundError:
        return Version("unknown")


async def metrics(service: Service, exchange: Exchange, _: Any) -> Raw:
    """Counters and histograms for Prometheus."""
    return Raw(service.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")


async def models(service: Service, exchange: Exchange, _: Any) -> ModelList:
    """The models of this server."""
    infos = [
        model_body(slot, name, exchange)
        for slot in service.models.slots
        for name in (*slot.names, *slot.adapter_names)
    ]
    if not _asks_anthropic(exchange):
        return ModelList(data=infos)
    page = page_of(infos, [each.id for each in infos], exchange.query)
    return ModelList(**page._asdict())


async def model(service: Service, exchange: Exchange, _: Any) -> ModelBody:
    """A model of this server by its name."""
    name = exchange.path_params["model_id"]
    slot = service.models.adapted(name) or service.models.named(name)
    known = (*slot.names, *slot.adapter_names)
    return model_body(slot, name if name in known else None, exchange)


def _asks_anthropic(exchange: Exchange) -> bool:
    return "anthropic-version" in exchange.headers


def model_body(
    slot: ModelSlot, name: str | None = None, exchange: Exchange | None = None
) -> ModelBody:
    """A model by one of its names, the first one by default, or an adapter of it."""
    name = name or slot.name
    more: dict[str, str] = {}
    if exchange is not None and _asks_anthropic(exchange):
        created_at = datetime.fromtimestamp(slot.created, UTC)
        more = {"type": "model", "display_name": name}
        more["created_at"] = created_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelBody(
        **more,
        id=name,
        parent=slot.name if name in slot.adapter_names else UNSET,
        created=slot.created,
        status=slot.state,
        progress=slot.progress,
        requests=slot.users + len(slot.waiting),
        error=UNSET if slot.error is None else slot.error,
        max_model_len=slot.model.context_tokens if slot.is_loaded else UNSET,
    )
