"""The plan of each process that shares the weights of every layer with others (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from mrs.architecture.shares import FLAG
from mrs.distributed.model_part import one_device_plan
from mrs.distributed.shared_memory import memory_bytes
from mrs.errors import Unsupported
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.shared_layers import share_planners
from mrs.request import RunRequest


class RankPlan(NamedTuple):
    """The part of a rank: its planner and plan, and its rows of each table of tokens."""

    planner: Planner
    plan: Plan
    rows: Mapping[str, range]

    @property
    def vocabulary(self) -> range:
        """The tokens whose logits it computes."""
        return self.rows[self.planner.description.spec.head_weight]

    @property
    def weight_bytes(self) -> int:
        return sum(each.weight_bytes for each in self.plan.breakdowns)

    @property
    def kv_bytes(self) -> int:
        return sum(self.plan.kv_bytes)


def rank_plans(planner: Planner, plan: Plan, request: RunRequest, ranks: int) -> list[RankPlan]:
    """The parts of all ranks of a model whose `plan` is for one process.

    Raises Unsupported for other devices than a CPU and NVIDIA's cards, and for what cannot be
    shared, and UsageError for too many ranks.
    """
    device = plan.devices[0]
    if device.torch_device.split(":")[0] not in ("cpu", "cuda"):
        raise Unsupported(
            f"processes on {device.label} cannot share layers yet",
            where=FLAG,
            hint="add --cpu, or leave the flag out",
        )
    if plan.workload.pool_blocks is not None:  # the pools of all have as many blocks
        tokens = plan.workload.cache.total_tokens
        request = replace(request, paged=replace(request.paged, pool=True, context_tokens=tokens))
    return [
        RankPlan(own, one_device_plan(own, request), rows)
        for own, rows in share_planners(planner, plan, ranks)
    ]


def ranks_of(request: RunRequest) -> int:
    """The number of processes that a request asks for, this one included."""
    from mrs.distributed.launcher import launched

    cluster = request.cluster
    assert cluster is not None
    workers = cluster.workers or cluster.wait_for
    if workers:
        return workers + 1
    rank = launched()
    return 1 if rank is None else rank.world


def needed_bytes(plans: Sequence[RankPlan]) -> int:
    """The memory that all ranks need together."""
    shared_bytes = memory_bytes(len(plans))
    return shared_bytes + sum(each.plan.breakdowns[0].needed_bytes for each in plans)


def available_bytes(plans: Sequence[RankPlan]) -> int:
    """The memory that there is for the ranks: that of the CPU, or of the cards they share out."""
    cards = [each for each in plans[0].planner.devices if each.torch_device.startswith("cuda")]
    used = cards[: len(plans)] or plans[0].plan.devices[:1]
    return sum(each.available_bytes for each in used)


def ranks_fit(plans: Sequence[RankPlan]) -> bool:
    return needed_bytes(plans) <= available_bytes(plans)
