"""Find the largest length, the largest batch or the best quantization that fits (`--solve`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

from mrs.plan.largest import largest
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.report.search import ISQ_FORMATS, LENGTH_STEP, MOST_SEQUENCES, best_format
from mrs.request import RunRequest, SolveGoal

GOALS: tuple[SolveGoal, ...] = get_args(SolveGoal)
UNQUANTIZED = "none"


@dataclass(frozen=True)
class Solution:
    """The best value (None if nothing fits), its plan, and all values that were tried.

    `tried` is in the order of the values: the smallest lengths and batches first, the finest
    formats first. Without a best value, `plan` is the one that lacks least.
    """

    goal: SolveGoal
    best: str | None
    plan: Plan
    request: RunRequest
    tried: tuple[tuple[str, Plan], ...]


def solve(planner: Planner, request: RunRequest, goal: SolveGoal) -> Solution:
    """The largest length or batch that fits, or the best `--isq` format (`best_format`).

    Layers may go to the CPU unless the request forbids it.
    """
    if goal == "isq":
        return _best_format(planner, request)
    if goal == "max-seq-len":
        limit = planner.description.spec.context_tokens
        low = min(LENGTH_STEP, limit)
        return _most(planner, request, goal, "max_seq_len", low, limit, LENGTH_STEP)
    return _most(planner, request, goal, "max_batch_size", 1, MOST_SEQUENCES, 1)


def _most(
    planner: Planner,
    request: RunRequest,
    goal: SolveGoal,
    field: str,
    low: int,
    high: int,
    step: int,
) -> Solution:
    tried: dict[int, Plan] = {}

    def fits(value: int) -> bool:
        tried[value] = planner.plan(_with(request, field, value))
        return tried[value].fits

    best = largest(fits, low, high, step)
    nearest = low if best is None else best
    return Solution(
        goal=goal,
        best=None if best is None else str(best),
        plan=tried[nearest],
        request=_with(request, field, nearest),
        tried=tuple((str(value), plan) for value, plan in sorted(tried.items())),
    )


def _best_format(planner: Planner, request: RunRequest) -> Solution:
    tried = list(planned_formats(planner, request))
    best = best_format(tried)
    isq, plan = best or tried[-1]
    return Solution(
        goal="isq",
        best=isq if best else None,
        plan=plan,
        request=with_isq(request, isq),
        tried=tuple(tried),
    )


def planned_formats(planner: Planner, request: RunRequest) -> Iterator[tuple[str, Plan]]:
    """Plans of the `--isq` formats from fine to small that make the weights smaller each."""
    smallest_bytes = None
    for isq in (UNQUANTIZED, *ISQ_FORMATS):
        plan = planner.plan(with_isq(request, isq))
        if smallest_bytes is None or plan.total_weight_bytes < smallest_bytes:
            smallest_bytes = plan.total_weight_bytes
            yield isq, plan


def with_isq(request: RunRequest, isq: str) -> RunRequest:
    """The request with a format of `--isq`, or with weights as they are."""
    return replace(request, isq=None if isq == UNQUANTIZED else isq)


def _with(request: RunRequest, field: str, value: object) -> RunRequest:
    changed: dict[str, object] = {field: value}
    make: Callable[..., RunRequest] = replace
    return make(request, **changed)
