"""What a response and all of its chunks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from mrs.server.http.exchange import Exchange

if TYPE_CHECKING:
    from mrs.server.models.slot import ModelSlot


class Identity(NamedTuple):
    """The id of the response, when it was made (seconds since 1970), and the model's name."""

    id: str
    created: int
    model: str


def new_identity(prefix: str, exchange: Exchange, slot: ModelSlot) -> Identity:
    name = exchange.adapter or slot.name
    return Identity(f"{prefix}{uuid4().hex}", exchange.created, name)
