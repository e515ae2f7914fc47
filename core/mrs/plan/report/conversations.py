"""How many conversations fit at once with the placement of a plan."""

from __future__ import annotations

from dataclasses import replace

from mrs.plan.largest import largest
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.report.search import MOST_SEQUENCES
from mrs.quantization.isq import isq_name
from mrs.quantization.storage import DTYPE_NAMES
from mrs.request import RunRequest


def conversations_at_once(planner: Planner, request: RunRequest, plan: Plan) -> int:
    """The largest number of sequences of the planned length that fit without any device's reserve.

    It is at least the planned batch, and 0 if the plan does not fit; of a pool, the number that
    fits in it. `plan` was made for `request` or is a saved plan that overrides it.
    """
    if not plan.fits:
        return 0
    if plan.workload.cache.is_pool:
        return plan.workload.cache.max_sequences
    settled = replace(
        request,
        max_seq_len=plan.workload.context_tokens,
        dtype=DTYPE_NAMES[plan.dense.name],
        isq=None if plan.isq is None else isq_name(plan.isq),
    )

    def with_batch(count: int) -> Plan:
        return planner.plan(replace(settled, max_batch_size=count), plan.placement)

    planned = plan.workload.batch
    most = max(planned, min(_bound(plan), MOST_SEQUENCES))
    least = max(planned, min(most, _bound(with_batch(most))))
    return largest(lambda count: _has_room(with_batch(count)), least, most) or planned


def _has_room(plan: Plan) -> bool:
    return plan.fits and all(breakdown.free_bytes >= 0 for breakdown in plan.breakdowns)


def _bound(plan: Plan) -> int:
    """An upper bound: how many KV caches fit in the memory that everything else leaves free.

    The rest may grow with the number of sequences, so the bound may be too high.
    """
    rooms = [
        (breakdown.free_bytes + breakdown.kv_bytes) * plan.workload.batch // breakdown.kv_bytes
        for breakdown in plan.breakdowns
        if breakdown.kv_bytes
    ]
    return max(1, min(rooms, default=MOST_SEQUENCES))
