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
    unused devices, and for all devices if the prefix cache is off.
    """
    if not has_prefix_cache(request):
        return (0,) * len(breakdowns)
    share = PREFIX_SHARE / request.max_models
    budgets = []
    for breakdown, most in zip(breakdowns, most_bytes, strict=True):
        budget = int(share * max(breakdown.free_bytes, 0)) if breakdown.is_used else 0
        budgets.append(min(budget, most) if breakdown.is_cpu else budget)
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
    try:
        return parse_bytes(request.prefix_cache_dir_size)
    except ValueError as error:
        raise UsageError(str(error), where="--prefix-cache-dir-size") from None


def has_prefix_cache(request: RunRequest) -> bool:
    """Whether the prefix cache is on."""
    return bool(request.kv_cache and request.prefix_cache_n)
