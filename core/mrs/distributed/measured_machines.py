"""The fastest way for one sequence by what joined workers have and by how fast their links are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mrs.devices.machine import Machine
from mrs.distributed.device_reports import reported_device
from mrs.distributed.memories import free_bytes_of, memories_of
from mrs.distributed.protocol.messages import LinkSpeed
from mrs.plan.machines import MachinesPlan, plan_machines

if TYPE_CHECKING:
    from mrs.distributed.cluster import Cluster
    from mrs.request import RunRequest


def fastest_by_measurement(cluster: Cluster, request: RunRequest) -> MachinesPlan | None:
    """The best placement over these processes, some of which may be left out.

    None where processes share layers: that is for other reasons than the speed of links.
    """
    if len(cluster.plans) > 1:
        return None
    planner, plan, _ = cluster.plans[0]
    members = cluster.head.members
    own = plan.devices[0]
    memories, free_bytes = memories_of(own, members), free_bytes_of(own, members)
    shares = [free_bytes[each] // memories.count(each) for each in memories]
    devices = [replace(own, available_bytes=shares[0])]
    for each, share_bytes in zip(members, shares[1:], strict=True):
        devices.append(reported_device(each.join.device, share_bytes))
    names = ["rank 0", *(each.name for each in members)]
    links = [_own_link(cluster.links, rank) for rank in range(len(devices))]
    machines = [
        Machine(name, [device], link.bytes_per_s, link.latency_s)
        for name, device, link in zip(names, devices, links, strict=True)
    ]
    return plan_machines(planner, request, machines)


def _own_link(links: Sequence[LinkSpeed], rank: int) -> LinkSpeed:
    """The better one of those to its neighbours: the other one may be the neighbour's fault."""
    return min(links[rank - 1], links[rank], key=lambda each: each.latency_s)
