"""Memory and speed of a model in several processes, compared with its plan.

seconds of a token = sum over ranks of (share of the reads * seconds of one process
                     * its bandwidth / the rank's)
                     + sum over links of (latency + bytes of the hidden states / rate)
                     + sum over stages of (number of its sums * seconds of a sum)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mrs.devices.bandwidth import bandwidth_of
from mrs.devices.host_memory import peak_resident_bytes
from mrs.devices.machine import Machine
from mrs.distributed.placement import PlannedShard, free_bytes_of, memories_of, reported_device
from mrs.distributed.protocol.failures import BEAT_S
from mrs.distributed.protocol.messages import LinkSpeed
from mrs.plan.machines import MachinesPlan, plan_machines
from mrs.plan.plan import Plan
from mrs.plan.shared_layers import sums_of_stage

if TYPE_CHECKING:
    from mrs.distributed.cluster import Cluster
    from mrs.model.decoder import Decoder
    from mrs.request import RunRequest

_DECODED_TOKENS = 16


class RankMemory(NamedTuple):
    """Bytes of weights and of a whole process, planned and measured.

    The process is measured at its peak, or while it decodes if it is another one.
    """

    name: str
    planned: PlannedShard
    weight_bytes: int
    resident_bytes: int | None


class MeasuredRun(NamedTuple):
    """`links` lead from each stage to the next; `sums_s` are the seconds of a sum in each stage.

    `between_s` is the time of a token on all links and in all sums. `fastest` is the placement that
    would be the fastest for one sequence.
    """

    ranks: Sequence[RankMemory]
    links: Sequence[LinkSpeed]
    sums_s: Sequence[float]
    between_s: float
    planned_token_s: tuple[float, float]
    token_s: float
    prompt_tokens_per_s: float
    fastest: MachinesPlan | None = None


def measure_run(cluster: Cluster, decoder: Decoder, plan: Plan, request: RunRequest) -> MeasuredRun:
    """Compute a chunk of a prompt and some tokens after it. Raises MrsError."""
    size = plan.workload.cache
    tokens = max(1, min(size.chunk_tokens, size.tokens - _DECODED_TOKENS))
    prompt_s, token_s = _timed_steps(decoder, tokens)
    time.sleep(1.5 * BEAT_S)  # workers say every second how much memory they have
    first, *others = cluster.layout.shards
    ranks = [RankMemory("rank 0", first, cluster.own_weight_bytes, peak_resident_bytes())]
    for shard, member in zip(others, cluster.coordinator.members, strict=True):
        resident_bytes = member.link.peer_resident_bytes
        ranks.append(RankMemory(member.name, shard, member.weight_bytes, resident_bytes))
    links = cluster.links
    between_s = sum(link.seconds(cluster.state_bytes) for link in links) + _sums_s(cluster)
    slower = _relative_seconds(cluster, plan)
    planned = plan.speed.decode
    fast, slow = (slower / rate + between_s for rate in (planned.high, planned.low))
    fastest = fastest_by_measurement(cluster, request)
    sums_s = cluster.sums_s if len(cluster.plans) > 1 else ()
    return MeasuredRun(
        ranks, links, sums_s, between_s, (fast, slow), token_s, tokens / prompt_s, fastest
    )


def _relative_seconds(cluster: Cluster, plan: Plan) -> float:
    """The time of reading all weights once, if that of one process is 1."""
    members, here = cluster.coordinator.members, bandwidth_of(plan.devices[0])
    rates = [here, *(member.join.device.bytes_per_s for member in members)]
    weights = [shard.weight_bytes for shard in cluster.layout.shards]
    return sum(w * here / rate for w, rate in zip(weights, rates, strict=True)) / sum(weights)


def _sums_s(cluster: Cluster) -> float:
    """The seconds of all sums of a token."""
    counts = [
        sums_of_stage(len(layers), is_first=not stage)
        for stage, layers in enumerate(cluster.layout.stages)
    ]
    return sum(n * seconds for n, seconds in zip(counts, cluster.sums_s, strict=True))


def _timed_steps(decoder: Decoder, tokens: int) -> tuple[float, float]:
    """Seconds of a prompt of `tokens` tokens, and of a token after it."""
    import torch

    from mrs.model.batch import SequenceInput, forward_batch

    cache = decoder.new_cache(tokens + _DECODED_TOKENS + 1, tokens)

    def feed(count: int) -> float:
        start_s = time.perf_counter()
        sequence = SequenceInput(cache, [0] * count, logits_rows=range(count - 1, count))
        decoder.forward(forward_batch([sequence]), [cache])
        return time.perf_counter() - start_s

    with torch.inference_mode():
        feed(1)  # the first call starts threads
        prompt_s = feed(tokens)
        return prompt_s, statistics.median(feed(1) for _ in range(_DECODED_TOKENS))


def fastest_by_measurement(cluster: Cluster, request: RunRequest) -> MachinesPlan | None:
    """The best placement over these processes, some of which may be left out.

    None where processes share layers: that is for other reasons than the speed of links.
    """
    if len(cluster.plans) > 1:
        return None
    planner, plan, _ = cluster.plans[0]
    members = cluster.coordinator.members
    here = plan.devices[0]
    memories, free_bytes = memories_of(here, members), free_bytes_of(here, members)
    shares = [free_bytes[memory] // memories.count(memory) for memory in memories]
    devices = [replace(here, available_bytes=shares[0])]
    for member, share_bytes in zip(members, shares[1:], strict=True):
        devices.append(reported_device(member.join.device, share_bytes))
    names = ["rank 0", *(member.name for member in members)]
    links = [_better_link(cluster.links, rank) for rank in range(len(devices))]
    machines = [
        Machine(name, [device], link.bytes_per_s, link.latency_s)
        for name, device, link in zip(names, devices, links, strict=True)
    ]
    return plan_machines(planner, request, machines)


def _better_link(links: Sequence[LinkSpeed], rank: int) -> LinkSpeed:
    """The better one of those to its neighbours: the other one may be the neighbour's fault."""
    return min(links[rank - 1], links[rank], key=lambda link: link.latency_s)
