"""Which layers each stage has: by the memory and the bandwidth of its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mrs.devices.bandwidth import bandwidth_of
from mrs.distributed.head import Member
from mrs.distributed.memories import free_bytes_of, memories_of
from mrs.distributed.model_part import joined_layers
from mrs.distributed.split import RankMemory, mapped_layers, split_layers
from mrs.distributed.tensor_shares import RankPlan
from mrs.request import RunRequest


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
        sum(each.plan.layer_bytes[n] + each.plan.kv_bytes[n] for each in plans) for n in layers
    ]
    return split_layers(layer_bytes, _stage_memories(plans, members), joined)


def _stage_memories(plans: Sequence[RankPlan], members: Sequence[Member]) -> list[RankMemory]:
    """What each stage has; the ranks of a stage read at the same time.

    Stages share a memory evenly, but the first may have all of its own, for things of no layer.
    """
    size, own = len(plans), plans[0].plan.devices[0]
    memories, free_bytes = memories_of(own, members), free_bytes_of(own, members)
    rates = [bandwidth_of(own), *(each.join.device.bytes_per_s for each in members)]
    rate_of = dict(zip(reversed(memories), reversed(rates), strict=True))
    starts = range(0, len(memories), size)
    stages = [list(dict.fromkeys(memories[n : n + size])) for n in starts]
    uses = Counter(memory for stage in stages for memory in stage)
    all_bytes = sum(each.weight_bytes + each.kv_bytes for each in plans)
    in_layers = sum(sum(each.plan.layer_bytes) + each.kv_bytes for each in plans)
    found = []
    for start, stage in zip(starts, stages, strict=True):
        found.append(
            RankMemory(
                members[start - 1].name if start else "this process",
                sum(free_bytes[each] // (uses[each] if start else 1) for each in stage),
                sum(rate_of[each] for each in stage),
                0 if start else all_bytes - in_layers,
            )
        )
    return found
