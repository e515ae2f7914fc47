"""The plan of each process that shares the weights of every layer with others (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from mrs.architecture.binding import Parameter
from mrs.architecture.shares import FLAG, share_model
from mrs.distributed.model_part import load_part, one_device_plan
from mrs.distributed.shared_memory import memory_bytes
from mrs.errors import DoesNotFit, Unsupported
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest
from mrs.units import human_bytes

if TYPE_CHECKING:
    from mrs.model.model_weights import ModelWeights


class RankPlan(NamedTuple):
    """The part of a rank: its planner and plan, and its rows of the vocabulary."""

    planner: Planner
    plan: Plan
    vocabulary: range

    @property
    def weight_bytes(self) -> int:
        return sum(each.weight_bytes for each in self.plan.breakdowns)

    @property
    def kv_bytes(self) -> int:
        return sum(self.plan.kv_bytes)


def rank_plans(planner: Planner, plan: Plan, request: RunRequest, ranks: int) -> list[RankPlan]:
    """The parts of all ranks of a model whose `plan` is for one process.

    Raises Unsupported for another device than the CPU and for what cannot be shared, and
    UsageError for too many ranks.
    """
    device = plan.devices[0]
    if device.torch_device != "cpu":
        raise Unsupported(
            f"processes on {device.label} cannot share layers yet",
            where=FLAG,
            hint="add --cpu, or leave the flag out",
        )
    if plan.workload.pool_blocks is not None:  # the pools of all have as many blocks
        tokens = plan.workload.cache.total_tokens
        request = replace(request, paged=replace(request.paged, pool=True, context_tokens=tokens))
    found = []
    for share in share_model(planner.description, ranks, _BlockColumns(planner, plan)):
        own = Planner(
            planner.checkpoint,
            share.description,
            planner.devices,
            cpu_packs=planner.cpu_packs,
            corrections=planner.corrections,
        )
        found.append(RankPlan(own, one_device_plan(own, request), share.vocabulary))
    return found


@dataclass(frozen=True)
class _BlockColumns:
    """Gives the columns that the blocks of a parameter have in the file and in memory."""

    planner: Planner
    plan: Plan

    def __call__(self, parameter: Parameter) -> int:
        tensors = self.planner.checkpoint.tensors
        formats = [tensors[each.tensor].format for each in parameter.pieces if each.packed is None]
        formats.append(self.plan.storage[parameter.name].format)
        return lcm(*(format.block_elements for format in formats))


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


def ranks_fit(plans: Sequence[RankPlan]) -> bool:
    return needed_bytes(plans) <= plans[0].plan.devices[0].available_bytes


def require_ranks_fit(plans: Sequence[RankPlan]) -> None:
    """Raises DoesNotFit unless the memory of this machine is enough for all ranks together."""
    needed, device = needed_bytes(plans), plans[0].plan.devices[0]
    if not ranks_fit(plans):
        raise DoesNotFit(
            f"{len(plans)} processes need {human_bytes(needed)} together and there is "
            f"{human_bytes(device.available_bytes)} on {device.label}",
            missing_bytes=needed - device.available_bytes,
            hint="lower --max-seq-len, pick a smaller --isq, or use fewer processes",
        )


def load_share(share: RankPlan) -> ModelWeights:
    """The weights of a rank; nothing else is read."""
    return load_part(share.planner, share.plan, list(share.planner.description.parameters))
