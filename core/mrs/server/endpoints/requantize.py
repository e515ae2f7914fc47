"""`/re_isq`: loads the model again with its weights quantized in another way."""

from __future__ import annotations

from dataclasses import replace

from msgspec import Struct

from mrs.server.http.errors import errors_of
from mrs.server.http.exchange import Exchange
from mrs.server.service import Service


class RequantizeRequest(Struct, kw_only=True):
    """`ggml_type` is a format such as q4k or Q8_0, or a number of bits, as `--isq` has it."""

    ggml_type: str
    model: str | None = None


class Requantized(Struct, frozen=True, kw_only=True):
    """The new format, and the summary of the model."""

    ggml_type: str
    summary: str


async def requantize(
    service: Service, exchange: Exchange, request: RequantizeRequest
) -> Requantized:
    """Quantize the weights anew. Requests that run end first; new ones wait meanwhile."""
    slot = service.models.named(request.model)
    isq = request.ggml_type.strip().lower()
    with errors_of("ggml_type"):
        summary = await service.models.exchange(
            slot, lambda before: replace(before, isq=isq, plan_file=None)
        )
    return Requantized(ggml_type=isq, summary=summary)
