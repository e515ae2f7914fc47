"""Which layers each stage has, and whether there is room for them in each memory."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from mrs.devices.bandwidth import bandwidth_of, with_bandwidth
from mrs.devices.device import Device
from mrs.devices.host_memory import held_bytes
from mrs.devices.machine import Machine
from mrs.devices.memory_nodes import memory_nodes
from mrs.distributed.coordinator import Member
from mrs.distributed.peer_variables import may_shard_layers
from mrs.distributed.protocol.messages import DeviceReport
from mrs.distributed.shard import RankPlan, joined_layers, memory_bytes, one_device_plan, rank_plans
from mrs.errors import DoesNotFit, UsageError
from mrs.plan.machines import plan_machines
from mrs.plan.most_sequences import most_sequences
from mrs.plan.placement.layer_map import FLAG, parse_layer_map
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.request import RunRequest
from mrs.units import human_bytes

_logger = logging.getLogger(__name__)


def device_report(devices: Sequence[Device]) -> DeviceReport:
    """The report of the device that a rank uses, the first."""
    first = with_bandwidth(devices)[0]
    is_cpu = first.kind == "cpu"
    return DeviceReport(
        first.label,
        first.name,
        first.available_bytes,
        bandwidth_of(first),
        max(1, len(memory_nodes())) if is_cpu else 1,
        first.uuid,
        held_bytes() if is_cpu else 0,
    )


def reported_device(report: DeviceReport, free_bytes: int) -> Device:
    """The device of a rank, which may have `free_bytes` of its memory."""
    kind = report.label.partition(":")[0]
    return Device(
        kind=kind,  # type: ignore[arg-type]
        ordinal=0,
        name=report.name,
        total_bytes=free_bytes,
        available_bytes=free_bytes,
        torch_device={"metal": "mps"}.get(kind, kind),
        bandwidth_bytes_per_s=report.bytes_per_s,
        bandwidth_source="measured",
    )


class Memory(NamedTuple):
    """The memory of a machine's device, by the UUID of a card or else by its label."""

    machine: str
    device: str


def memories_of(here: Device, members: Sequence[Member]) -> list[Memory]:
    """The memory of each process: of this one, whose device is `here`, and of these members."""
    reports = [(member.machine, member.join.device) for member in members]
    others = [Memory(machine, report.uuid or report.label) for machine, report in reports]
    return [Memory("", here.uuid or here.label), *others]


def free_bytes_of(here: Device, members: Sequence[Member]) -> dict[Memory, int]:
    """What these processes together may have of each memory.

    That is what the first of them may have, and what the others have already: they keep weights.
    """
    first, *others = memories_of(here, members)
    free_bytes = {first: here.available_bytes}
    for memory, member in zip(others, members, strict=True):
        report = member.join.device
        known_bytes = free_bytes.get(memory)
        if known_bytes is None:
            free_bytes[memory] = report.free_bytes
        else:
            free_bytes[memory] = known_bytes + report.held_bytes
    return free_bytes


@dataclass(frozen=True)
class StageMemory:
    """What a stage has for layers; `fixed_bytes` of it are for other things, and are read."""

    name: str
    free_bytes: int
    bytes_per_s: float
    fixed_bytes: int = 0


def split_layers(
    layer_bytes: Sequence[int],
    stages: Sequence[StageMemory],
    joined: AbstractSet[int] = frozenset(),
) -> list[range]:
    """A range of layers for each stage, at least one, in order.

    `layer_bytes` are weights and KV cache. The stage that needs the most time to read its bytes
    needs as little as possible, so that the stages keep each other busy. The layers `joined` stay
    with the one before them. Raises UsageError for fewer layers than stages, and DoesNotFit.
    """
    count = len(layer_bytes)
    most = count - len(joined)
    if most < len(stages):
        together = f", {len(joined)} of which belong to the one before," if joined else ""
        raise UsageError(
            f"{count} layers{together} cannot be split over {len(stages)} processes",
            hint=f"use at most {most - 1} workers" if most > 1 else "leave out --workers",
        )
    before = list(accumulate(layer_bytes, initial=0))
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for number, stage in enumerate(stages):
        left = len(stages) - number - 1
        extended = _extended(best[-1], before, stage, count - left)
        best.append({end: best_to for end, best_to in extended.items() if end not in joined})
    if count not in best[-1]:
        free_bytes = sum(max(0, stage.free_bytes - stage.fixed_bytes) for stage in stages)
        missing = max(1, before[-1] - free_bytes)
        raise DoesNotFit(
            f"{count} layers of {human_bytes(before[-1])} do not fit into {len(stages)} processes",
            missing_bytes=missing,
            where="; ".join(
                f"{stage.name} has {human_bytes(stage.free_bytes)}" for stage in stages
            ),
            hint="add a worker, lower --max-seq-len, or pick a smaller --isq",
        )
    ranges, end = [], count
    for steps in reversed(best[1:]):
        start = steps[end][1]
        ranges.append(range(start, end))
        end = start
    return ranges[::-1]


def _extended(
    known: dict[int, tuple[float, int]], before: Sequence[int], stage: StageMemory, most: int
) -> dict[int, tuple[float, int]]:
    """By the layers that this stage and those before it have: the longest time, and its start."""
    extended: dict[int, tuple[float, int]] = {}
    for start, (seconds, _) in known.items():
        for end in range(start + 1, most + 1):
            stage_bytes = before[end] - before[start] + stage.fixed_bytes
            if stage_bytes > stage.free_bytes:
                break
            longest = max(seconds, stage_bytes / stage.bytes_per_s)
            if end not in extended or longest < extended[end][0]:
                extended[end] = longest, start
    return extended


def mapped_layers(
    text: str, layers: int, ranks: int, joined: AbstractSet[int] = frozenset()
) -> list[range]:
    """The layers that `--num-device-layers` gives each rank: `0:3;1:2`. Raises UsageError.

    `joined` as in `split_layers`.
    """
    pairs = dict(parse_layer_map(text))
    counts = [pairs.get(rank, 0) for rank in range(ranks)]
    if sum(counts) != layers or 0 in counts or len(pairs) != ranks:
        raise UsageError(
            f"{text!r} does not give each of {ranks} processes some of {layers} layers",
            where=FLAG,
            hint="with workers its pairs are rank:layers, such as 0:16;1:16",
        )
    ends = list(accumulate(counts))
    if divided := joined & set(ends):
        first = last = min(divided)
        while first in joined:
            first -= 1
        while last + 1 in joined:
            last += 1
        raise UsageError(
            f"{text!r} divides the layers {first} to {last}",
            where=FLAG,
            hint="these share what they compute, and belong to one process",
        )
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def stage_layers(
    request: RunRequest, plans: Sequence[RankPlan], members: Sequence[Member]
) -> list[range]:
    """The layers of each stage, whose ranks have these `plans`. Raises UsageError, DoesNotFit."""
    size, spec = len(plans), plans[0].planner.description.spec
    layers = range(len(spec.layers))
    stages = (len(members) + 1) // size
    if stages == 1:
        return [layers]
    joined = joined_layers(spec)
    if request.layer_map is not None:
        return mapped_layers(request.layer_map, len(layers), stages, joined)
    layer_bytes = [
        sum(plan.layer_bytes[n] + plan.kv_bytes[n] for _, plan, _ in plans) for n in layers
    ]
    return split_layers(layer_bytes, _stage_memories(plans, members), joined)


def _stage_memories(plans: Sequence[RankPlan], members: Sequence[Member]) -> list[StageMemory]:
    """What each stage has; the ranks of a stage read at the same time.

    Stages share a memory evenly, but the first may have all of its here, for things of no layer.
    """
    size, here = len(plans), plans[0].plan.devices[0]
    memories, free_bytes = memories_of(here, members), free_bytes_of(here, members)
    rates = [bandwidth_of(here), *(member.join.device.bytes_per_s for member in members)]
    rate_of = dict(zip(reversed(memories), reversed(rates), strict=True))
    starts = range(0, len(memories), size)
    stages = [list(dict.fromkeys(memories[n : n + size])) for n in starts]
    uses = Counter(memory for stage in stages for memory in stage)
    all_bytes = sum(rank.weight_bytes + rank.kv_bytes for rank in plans)
    in_layers = sum(sum(rank.plan.layer_bytes) + rank.kv_bytes for rank in plans)
    return [
        StageMemory(
            members[start - 1].name if start else "this process",
            sum(free_bytes[memory] // (uses[memory] if start else 1) for memory in stage),
            sum(rate_of[memory] for memory in stage),
            0 if start else all_bytes - in_layers,
        )
        for start, stage in zip(starts, stages, strict=True)
    ]


class PlannedShard(NamedTuple):
    """The bytes that a process needs by the plan: of weights, of all, and at most of all."""

    weight_bytes: int
    total_bytes: int
    needed_bytes: int


class StageLayout(NamedTuple):
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
    ) -> StageLayout:
        """The layout for as many sequences as the request says. Raises MrsError, DoesNotFit too."""

        def layout(asked: RunRequest, asked_plan: Plan) -> StageLayout:
            plans = [RankPlan(planner, asked_plan, {})]
            if group_size > 1:
                plans = rank_plans(planner, asked_plan, asked, group_size)
            return cls(asked, asked_plan, plans, stage_layers(asked, plans, members))

        first = layout(request, plan)
        first._require_fit(members)
        assert request.cluster is not None
        share, is_pool = request.cluster.sequences_share, plan.workload.cache.is_pool
        if not share or is_pool or request.max_batch_size > 1 or request.plan_file:
            return first

        def for_many(count: int) -> StageLayout:
            asked = replace(request, max_batch_size=count)
            return layout(asked, one_device_plan(planner, asked) if count > 1 else plan)

        def free_bytes(count: int) -> list[int] | None:
            try:
                return list(for_many(count)._free_bytes(members).values())
            except DoesNotFit:
                return None

        return for_many(most_sequences(free_bytes, request.max_seqs, share))

    @property
    def shards(self) -> list[PlannedShard]:
        """What each process needs; weights that belong to no layer are in the first stage."""
        return [
            _planned(plan, layers, is_first=not stage)
            for stage, layers in enumerate(self.stages)
            for _, plan, _ in self.plans
        ]

    def _free_bytes(self, members: Sequence[Member]) -> dict[Memory, int]:
        """What all processes leave of each memory; negative if they do not fit."""
        here = self.plan.devices[0]
        left = Counter(free_bytes_of(here, members))
        size = len(self.plans)
        shared_bytes = memory_bytes(size) // size if size > 1 else 0
        for memory, shard in zip(memories_of(here, members), self.shards, strict=True):
            left[memory] -= shard.needed_bytes + shared_bytes
        return dict(left)

    def _require_fit(self, members: Sequence[Member]) -> None:
        """Raises DoesNotFit for the memory that lacks most."""
        free_bytes = free_bytes_of(self.plan.devices[0], members)
        memory, left = min(
            self._free_bytes(members).items(), key=lambda memory_left: memory_left[1]
        )
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


def _planned(plan: Plan, layers: range, *, is_first: bool) -> PlannedShard:
    terms = plan.breakdowns[0]
    weight_bytes = sum(plan.layer_bytes[n] for n in layers)
    if is_first:
        weight_bytes += terms.weight_bytes - sum(plan.layer_bytes)
    kv_bytes = sum(plan.kv_bytes[n] for n in layers)
    others = terms.weight_bytes - weight_bytes + sum(plan.kv_bytes) - kv_bytes
    return PlannedShard(weight_bytes, terms.total.expected - others, terms.needed_bytes - others)


def chosen_group_size(
    request: RunRequest, planner: Planner, plan: Plan, members: Sequence[Member]
) -> int:
    """The size of groups of the fastest plan, if all processes can be in such groups; else 1.

    Links are not known before the weights are loaded, so that the usual ones are assumed. A
    pipeline is exact, so it stays where layers are not shared faster.
    """
    here = plan.devices[0]
    if here.torch_device != "cpu" or not may_shard_layers(os.environ):
        return 1
    counts = Counter(["", *(member.machine for member in members)])
    machines = [Machine("", [here], memory_nodes=max(1, len(memory_nodes())))]
    for member in members:
        if member.machine not in (machine.name for machine in machines):
            report = member.join.device
            device = reported_device(report, report.free_bytes)
            machines.append(Machine(member.machine, [device], memory_nodes=report.memory_nodes))
    if all(machine.memory_nodes == 1 for machine in machines):
        return 1
    machines_plan = plan_machines(planner, request, machines)
    size = machines_plan.group_size
    if size == 1 or any(count % size for count in counts.values()):
        return 1
    choices = machines_plan.choices
    alone, shared = choices[0], next(choice for choice in choices if choice.group_size == size)
    _logger.warning(
        "%d processes share the layers of a stage, for as many memory nodes: %.3g instead of %s ms "
        "a token by the plan; --tensor-parallel-size 1 prevents it",
        size,
        1000 * shared.token_seconds,
        f"{1000 * alone.token_seconds:.3g}" if not alone.refusal else "more",
    )
    return size
