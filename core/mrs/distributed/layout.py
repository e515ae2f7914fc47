"""Which layers each process has, what it needs for them by the plan, and whether there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mrs.distributed.head import Member
from mrs.distributed.memories import Memory, free_bytes_of, memories_of
from mrs.distributed.model_part import one_device_plan
from mrs.distributed.shared_memory import memory_bytes
from mrs.distributed.stage_layers import stage_layers
from mrs.distributed.tensor_shares import RankPlan, rank_plans
from mrs.errors import DoesNotFit
from mrs.plan.most_sequences import most_sequences
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest
from mrs.units import human_bytes


class PlannedPart(NamedTuple):
    """The bytes that a process needs by the plan: of weights, of all, and at most of all."""

    weight_bytes: int
    total_bytes: int
    needed_bytes: int


class Layout(NamedTuple):
    """The layers of each stage by a request and its `plan` for one process.

    `plans` are those of the ranks of a stage, if that had all layers.
    """

    request: RunRequest
    plan: Plan
    plans: Sequence[RankPlan]
    stages: Sequence[range]

    @classmethod
    def make(
        cls,
        request: RunRequest,
        planner: Planner,
        plan: Plan,
        members: Sequence[Member],
        group_size: int,
    ) -> Layout:
        """The layout for as many sequences as the request says. Raises MrsError, DoesNotFit too."""

        def made(asked: RunRequest, asked_plan: Plan) -> Layout:
            plans = [RankPlan(planner, asked_plan, {})]
            if group_size > 1:
                plans = rank_plans(planner, asked_plan, asked, group_size)
            return cls(asked, asked_plan, plans, stage_layers(asked, plans, members))

        first = made(request, plan)
        first._require_fit(members)
        assert request.cluster is not None
        share, is_pool = request.cluster.sequences_share, plan.workload.cache.is_pool
        if not share or is_pool or request.max_batch_size > 1 or request.plan_file:
            return first

        def for_many(count: int) -> Layout:
            asked = replace(request, max_batch_size=count)
            return made(asked, one_device_plan(planner, asked) if count > 1 else plan)

        def free_bytes(count: int) -> list[int] | None:
            try:
                return list(for_many(count)._free_bytes(members).values())
            except DoesNotFit:
                return None

        return for_many(most_sequences(free_bytes, request.max_seqs, share))

    @property
    def parts(self) -> list[PlannedPart]:
        """What each process needs; weights that belong to no layer are in the first stage."""
        return [
            _planned(each.plan, layers, is_first=not stage)
            for stage, layers in enumerate(self.stages)
            for each in self.plans
        ]

    def _free_bytes(self, members: Sequence[Member]) -> dict[Memory, int]:
        """What all processes leave of each memory; negative if they do not fit."""
        own = self.plan.devices[0]
        left = Counter(free_bytes_of(own, members))
        size = len(self.plans)
        shared_bytes = memory_bytes(size) // size if size > 1 else 0
        for memory, part in zip(memories_of(own, members), self.parts, strict=True):
            left[memory] -= part.needed_bytes + shared_bytes
        return dict(left)

    def _require_fit(self, members: Sequence[Member]) -> None:
        """Raises DoesNotFit for the memory that lacks most."""
        free_bytes = free_bytes_of(self.plan.devices[0], members)
        memory, left = min(self._free_bytes(members).items(), key=lambda each: each[1])
        if left < 0:
            count = memories_of(self.plan.devices[0], members).count(memory)
            where = f"on {memory.machine}" if memory.machine else "here"
            processes = "1 process needs" if count == 1 else f"{count} processes need"
            raise DoesNotFit(
                f"{processes} {human_bytes(free_bytes[memory] - left)} {where}, "
                f"and {human_bytes(free_bytes[memory])} is free",
                missing_bytes=-left,
                hint="lower --max-seq-len, pick a smaller --isq, or use fewer processes",
            )


def _planned(plan: Plan, layers: range, *, is_first: bool) -> PlannedPart:
    terms = plan.breakdowns[0]
    weight_bytes = sum(plan.layer_bytes[n] for n in layers)
    if is_first:
        weight_bytes += terms.weight_bytes - sum(plan.layer_bytes)
    kv_bytes = sum(plan.kv_bytes[n] for n in layers)
    others = terms.weight_bytes - weight_bytes + sum(plan.kv_bytes) - kv_bytes
    return PlannedPart(weight_bytes, terms.total.expected - others, terms.needed_bytes - others)
