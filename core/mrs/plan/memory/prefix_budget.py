"""What may be spent on remembering past sequences: memory that a plan leaves over, and files."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.errors import UsageError
from mrs.plan.memory.breakdown import MemoryBreakdown
from mrs.request import RunRequest
from mrs.units import parse_bytes

#: The part of what is left over that past sequences may take; the rest stays for others.
PREFIX_SHARE = 0.5


def prefix_budgets(request: RunRequest, terms: Sequence[MemoryBreakdown]) -> tuple[int, ...]:
    """Bytes on each device, beside the caches of running sequences that `terms` count.

    0 for devices that hold nothing, and for all where past sequences are not to be remembered.
    """
    if not remembers(request):
        return (0,) * len(terms)
    return tuple(
        int(PREFIX_SHARE * max(held.free_bytes, 0)) if held.is_used else 0 for held in terms
    )


def folder_bytes(request: RunRequest) -> int | None:
    """Bytes that files may take in the request's folder; None where it names none.

    UsageError where they could hold nothing.
    """
    if request.prefix_cache_dir is None:
        return None
    if not remembers(request):
        raise UsageError(
            f"nothing is remembered that could be kept in {request.prefix_cache_dir or 'a folder'}",
            where="--prefix-cache-dir",
            hint="leave out --no-kv-cache and --prefix-cache-n 0",
        )
    if not request.prefix_cache_dir:
        raise UsageError("--prefix-cache-dir names no folder", hint="give it one, or leave it out")
    try:
        return parse_bytes(request.prefix_cache_dir_size)
    except ValueError as error:
        raise UsageError(str(error), where="--prefix-cache-dir-size") from None


def remembers(request: RunRequest) -> bool:
    """Whether past sequences are remembered at all."""
    return bool(request.kv_cache and request.prefix_cache_n)
