"""Limits of the prefix cache: memory that a plan leaves free, and files."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.errors import UsageError
from mrs.plan.memory.breakdown import MemoryBreakdown
from mrs.request import RunRequest
from mrs.units import parse_bytes

#: Fraction of the free memory that the prefix cache may use; the rest stays free for others.
PREFIX_SHARE = 0.5


def prefix_budgets(
    request: RunRequest, breakdowns: Sequence[MemoryBreakdown], most_bytes: Sequence[int]
) -> tuple[int, ...]:
    """Bytes on each device, in addition to the caches of running sequences.

    On a CPU they are at most `most_bytes`: a small model needs no large part of the memory. 0 for
    unused devices, and for all devices if the prefix cache is off. A size that the request gives is
    the limit of all devices together; the first devices have it first. Raises UsageError for what
    is no size.
    """
    left = _size(request.prefix_cache_size, "--prefix-cache-size")
    if not has_prefix_cache(request):
        return (0,) * len(breakdowns)
    share = PREFIX_SHARE / request.max_models
    budgets = []
    for breakdown, most in zip(breakdowns, most_bytes, strict=True):
        budget = int(share * max(breakdown.free_bytes, 0)) if breakdown.is_used else 0
        budget = min(budget, most) if breakdown.is_cpu else budget
        if left is not None:
            # What a person asks for may be more than half of what is free, but not more than that.
            free_bytes = max(breakdown.free_bytes, 0) // request.max_models
            budget = min(free_bytes, left // request.max_models) if breakdown.is_used else 0
            left -= budget * request.max_models
        budgets.append(budget)
    return tuple(budgets)


def folder_bytes(request: RunRequest) -> int | None:
    """Most bytes of files in `--prefix-cache-dir`; None if no folder is given.

    UsageError if a folder is given and the prefix cache is off.
    """
    if request.prefix_cache_dir is None:
        return None
    if not has_prefix_cache(request):
        raise UsageError(
            f"the prefix cache is off: nothing to store in {request.prefix_cache_dir or 'it'}",
            where="--prefix-cache-dir",
            hint="leave out --no-kv-cache and --prefix-cache-n 0",
        )
    if not request.prefix_cache_dir:
        raise UsageError("--prefix-cache-dir is empty", hint="give it a folder, or leave it out")
    return _size(request.prefix_cache_dir_size, "--prefix-cache-dir-size")


def _size(text: str | None, flag: str) -> int | None:
    """The bytes that a flag gives; None if it is not given."""
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(str(error), where=flag) from None


def has_prefix_cache(request: RunRequest) -> bool:
    """Whether the prefix cache is on."""
    return bool(request.kv_cache and request.prefix_cache_n)
