"""What may be spent on remembering past sequences: memory that a plan leaves over."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.plan.account import DeviceTerms
from mrs.request import RunRequest

#: The part of what is left over that past sequences may take; the rest stays for others.
PREFIX_SHARE = 0.5


def prefix_budgets(request: RunRequest, terms: Sequence[DeviceTerms]) -> tuple[int, ...]:
    """Bytes on each device, beside the caches of running sequences that `terms` count.

    0 for devices that hold nothing, and for all where past sequences are not to be remembered.
    """
    if not (request.kv_cache and request.prefix_cache_n):
        return (0,) * len(terms)
    return tuple(
        int(PREFIX_SHARE * max(held.free_bytes, 0)) if held.total.expected else 0 for held in terms
    )
