"""What the bodies of all replies have in common."""

from __future__ import annotations

from msgspec import Struct


class ResponseFields(Struct, frozen=True, kw_only=True):
    """`created` is in seconds since 1970; a response and all of its chunks have the same."""

    id: str
    created: int
    model: str
    system_fingerprint: str = "local"
