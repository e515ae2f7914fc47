"""What the bodies of all replies have in common."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType


class ResponseFields(Struct, frozen=True, kw_only=True):
    """`created` is in seconds since 1970; a response and all of its chunks have the same.

    `load_progress` is the share of the model that is loaded, in the first chunks of a stream with
    return_progress.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str = "local"
    load_progress: float | UnsetType = UNSET
