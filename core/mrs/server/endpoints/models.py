"""`/v1/models/load`, `unload`, `reload` and `status`: which models are in memory."""

from __future__ import annotations

from msgspec import Struct

from mrs.server.endpoints.status import ModelBody, model_body
from mrs.server.http.errors import ApiError
from mrs.server.http.exchange import Exchange
from mrs.server.models.slot import ModelSlot
from mrs.server.service import Service


class ModelRequest(Struct, kw_only=True):
    """Names a model; `model_id` means the same as `model`."""

    model: str | None = None
    model_id: str | None = None

    @property
    def name(self) -> str:
        """Raises ApiError if it is missing: it is never the default model."""
        name = self.model or self.model_id
        if not name:
            raise ApiError(400, "no model is named: give model", "model", "missing")
        return name


async def load(service: Service, exchange: Exchange, request: ModelRequest) -> ModelBody:
    """Load a model, and wait for it. One that the server does not know may be a hub id or a path,
    if the server was started with --allow-load."""
    known = set(service.models.slots)
    slot = await service.models.named_or_new(request.name)
    return await _loaded(service, exchange, slot, is_new=slot not in known)


async def unload(service: Service, exchange: Exchange, request: ModelRequest) -> ModelBody:
    """Unload a model that no request uses. A later request loads it again."""
    slot = service.models.named(request.name)
    await service.models.unload(slot)
    return model_body(slot)


async def reload(service: Service, exchange: Exchange, request: ModelRequest) -> ModelBody:
    """Unload a model that no request uses, if it is loaded, and load it anew from its files."""
    slot = service.models.named(request.name)
    await service.models.unload(slot)
    return await _loaded(service, exchange, slot)


async def status(service: Service, exchange: Exchange, request: ModelRequest) -> ModelBody:
    """What a model is doing, without waiting."""
    return model_body(service.models.named(request.name))


async def _loaded(
    service: Service, exchange: Exchange, slot: ModelSlot, *, is_new: bool = False
) -> ModelBody:
    try:
        await service.use(exchange, slot)
    except Exception:
        if is_new:
            service.models.forget(slot)
        raise
    return model_body(slot)
