"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, in the form of vLLM."""

from __future__ import annotations

from dataclasses import replace

from msgspec import Struct

from mrs.request import AdapterRequest, RunRequest
from mrs.server.http.errors import ApiError, errors_of
from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw
from mrs.server.schemas.structure import refuse
from mrs.server.service import Service


class LoadAdapterRequest(Struct, kw_only=True):
    """Names an adapter, and its folder on the server or its hub id.

    load_inplace  take it instead of one of the same name
    """

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None
    base_model_name: str | None = None
    model: str | None = None


class UnloadAdapterRequest(Struct, kw_only=True):
    """Names an adapter."""

    lora_name: str
    lora_int_id: int | None = None
    model: str | None = None


async def load_adapter(service: Service, exchange: Exchange, request: LoadAdapterRequest) -> Raw:
    """Load a LoRA adapter that requests may choose, if the server was started with
    --allow-adapter-loading. Requests that run end first; new ones wait until the model is loaded
    with it. What does not fit into the memory is refused before."""
    _require_allowed(service)
    name = request.lora_name
    for field, value in (("lora_name", name), ("lora_path", request.lora_path)):
        if not value.strip():
            raise ApiError(400, f"{field} is empty: give it", field, "invalid_value")
    slot = service.models.named(request.model or request.base_model_name)
    if name == "default" or any(name in each.names for each in service.models.slots):
        raise ApiError(400, f"{name!r} is the name of a model: choose another one", "lora_name")

    def change(before: RunRequest) -> RunRequest:
        others = tuple(each for each in before.adapters if each.name != name or each.is_merged)
        if len(others) < len(before.adapters) and not request.load_inplace:
            message = f"the adapter {name!r} is loaded already: send load_inplace, or unload it"
            raise ApiError(400, message, "lora_name", "adapter_loaded")
        added = AdapterRequest(request.lora_path, name, is_merged=False)
        return replace(before, adapters=(*others, added), plan_file=None)

    with errors_of("lora_path"):
        await service.models.exchange(slot, change)
    return Raw(f"Success: LoRA adapter '{name}' added successfully.".encode())


async def unload_adapter(
    service: Service, exchange: Exchange, request: UnloadAdapterRequest
) -> Raw:
    """Unload a LoRA adapter that requests may choose; those that use it end first."""
    _require_allowed(service)
    refuse("lora_int_id", "an adapter by its number", request.lora_int_id is not None)
    name = request.lora_name
    slot = service.models.named(request.model) if request.model else service.models.adapted(name)
    if slot is None or name not in slot.adapter_names:
        raise ApiError(
            404, f"there is no adapter {name!r}: ask /v1/models", "lora_name", "adapter_not_found"
        )

    def change(before: RunRequest) -> RunRequest:
        others = tuple(each for each in before.adapters if each.name != name or each.is_merged)
        return replace(before, adapters=others, plan_file=None)

    await service.models.exchange(slot, change)
    return Raw(f"Success: LoRA adapter '{name}' removed successfully.".encode())


def _require_allowed(service: Service) -> None:
    """Raises ApiError, since whoever loads adapters has files of this machine read."""
    if not service.settings.allow_adapters:
        raise ApiError(
            403,
            "adapters may not be loaded: start the server with --allow-adapter-loading",
            code="adapter_loading_not_allowed",
        )
