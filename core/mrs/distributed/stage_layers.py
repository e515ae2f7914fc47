"""Which layers each stage has: by the memory and the bandwidth of its machine."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.devices.bandwidth import bandwidth_of
from mrs.distributed.head import Member
from mrs.distributed.model_part import unbroken_layers
from mrs.distributed.split import RankMemory, mapped_layers, split_layers
from mrs.distributed.tensor_shares import RankPlan
from mrs.request import RunRequest


def stage_layers(
    request: RunRequest, plans: Sequence[RankPlan], members: Sequence[Member]
) -> list[range]:
    """The layers of each stage, whose ranks have these `plans`. Raises UsageError, DoesNotFit.

    The ranks of a stage read at the same time, from the memory of one machine.
    """
    size, spec = len(plans), plans[0].planner.description.spec
    leaders = members[size - 1 :: size]
    layers = range(len(spec.layers))
    if not leaders:
        return [layers]
    unbroken = unbroken_layers(spec)
    if request.layer_map is not None:
        return mapped_layers(request.layer_map, len(layers), len(leaders) + 1, unbroken)
    layer_bytes = [
        sum(each.plan.layer_bytes[n] + each.plan.kv_bytes[n] for each in plans) for n in layers
    ]
    own = plans[0].plan.devices[0]
    all_bytes = sum(each.weight_bytes + each.plan.breakdowns[0].kv_bytes for each in plans)
    fixed_bytes = all_bytes - sum(layer_bytes)
    stages = [RankMemory("this process", own.available_bytes, bandwidth_of(own), fixed_bytes)]
    for each in leaders:
        free_bytes = each.join.device.free_bytes // processes_of(each.machine, leaders)
        stages.append(RankMemory(each.name, free_bytes, each.join.device.bytes_per_s))
    return split_layers(layer_bytes, stages, unbroken)


def processes_of(machine: str, members: Sequence[Member]) -> int:
    """How many of the head and these `members` share the memory of a machine."""
    return (not machine) + sum(each.machine == machine for each in members)
