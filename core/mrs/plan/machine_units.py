"""What can be a stage of a plan over machines: a device, or several processes that share layers.

bytes a second of one of n processes on a CPU = bandwidth * memory nodes / n
seconds of a layer = max over processes (bytes read / bandwidth) + 2 sums
seconds of a sum   = latency + (n - 1) * bytes of a hidden state / rate
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from mrs.devices.bandwidth import bandwidth_of
from mrs.devices.device import Device, DeviceKind
from mrs.devices.machine import Machine
from mrs.plan.cost import decoded_layer_bytes
from mrs.plan.placement.placement import Placement
from mrs.plan.placement.token_time import HOP_SECONDS
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.shared_layers import shard_planners, sums_of_stage
from mrs.request import RunRequest

#: One sum of two processes without the time of its bytes: through shared memory, and by NCCL
#: without a direct link between the cards.
SUM_LATENCY_S: dict[DeviceKind, float] = {"cpu": 20e-6, "cuda": 40e-6, "metal": 40e-6}
#: The rate of a sum between cards; that between processes is the memory's.
CARDS_BYTES_PER_S = 25e9


@dataclass(frozen=True)
class ShardDemand:
    """Memory and reads of a model, or of a shard of it, as one device stores it."""

    memory: Sequence[int]
    weights: Sequence[int]
    reads: Sequence[float]
    head_bytes: int
    head_read: float
    fixed_bytes: int


@dataclass(frozen=True)
class Process:
    """A device, how fast the process reads there, and what of the model it would have."""

    device: Device
    bytes_per_s: float
    demand: ShardDemand


@dataclass(frozen=True)
class Unit:
    """One process of a machine, or several that share layers."""

    machine: Machine
    processes: Sequence[Process]
    #: The seconds of a sum, 0 for one process.
    sum_s: float = 0.0

    @property
    def label(self) -> str:
        return " and ".join(dict.fromkeys(each.device.label for each in self.processes))

    @cached_property
    def pools(self) -> list[Pool]:
        """The memory of each device, which processes on it share."""
        labels = dict.fromkeys(each.device.label for each in self.processes)
        return [
            Pool.of([each for each in self.processes if each.device.label == label])
            for label in labels
        ]

    @property
    def layers(self) -> int:
        return len(self.processes[0].demand.memory)

    def seconds(self, layers: range, *, is_first: bool) -> float:
        """The time of a token in these layers; embedding and head are in the first stage."""
        layers_s = self._seconds_before[layers.stop] - self._seconds_before[layers.start]
        if is_first:
            layers_s += max(each.demand.head_read / each.bytes_per_s for each in self.processes)
        return layers_s + self.sum_s * sums_of_stage(len(layers), is_first=is_first)

    def fits(self, layers: range, *, is_first: bool) -> bool:
        return all(pool.left(layers, is_first=is_first) >= 0 for pool in self.pools)

    @cached_property
    def _seconds_before(self) -> list[float]:
        """The time of all layers before each one, without sums."""
        layer_s = [
            max(each.demand.reads[n] / each.bytes_per_s for each in self.processes)
            for n in range(self.layers)
        ]
        return list(accumulate(layer_s, initial=0.0))


@dataclass(frozen=True)
class Pool:
    """The memory of a device: what is free, and what layers before each one and the head need."""

    free_bytes: int
    before: Sequence[int]
    head_bytes: int

    @classmethod
    def of(cls, processes: Sequence[Process]) -> Pool:
        demands = [each.demand for each in processes]
        memory = [sum(row) for row in zip(*(each.memory for each in demands), strict=True)]
        fixed_bytes = sum(each.fixed_bytes for each in demands)
        free_bytes = processes[0].device.memory.usable_bytes - fixed_bytes
        head_bytes = sum(each.head_bytes for each in demands)
        return cls(free_bytes, list(accumulate(memory, initial=0)), head_bytes)

    def left(self, layers: range, *, is_first: bool) -> int:
        needed = self.before[layers.stop] - self.before[layers.start]
        return self.free_bytes - needed - (self.head_bytes if is_first else 0)


def largest_group(machine: Machine) -> int:
    """How many processes of a machine read faster together than one."""
    return max(machine.memory_nodes, len(_cards(machine)), 1)


def units_of(
    planner: Planner, request: RunRequest, machine: Machine, group_size: int
) -> list[Unit]:
    """The devices of a machine, or its groups of processes of that size.

    Raises Unsupported and UsageError for a model that such a group cannot share.
    """
    if group_size == 1:
        return [
            Unit(machine, [Process(each, bandwidth_of(each), _demand(planner, request, each))])
            for each in machine.devices
        ]
    hidden_bytes = 4 * planner.description.spec.hidden_size
    return [
        Unit(
            machine,
            [
                Process(device, rate, demand)
                for device, rate, demand in zip(
                    devices, rates, _shares(planner, request, devices), strict=True
                )
            ],
            _sum_s(machine, devices[0], group_size, hidden_bytes),
        )
        for devices, rates in _groups(machine, group_size)
    ]


def _groups(machine: Machine, size: int) -> Iterator[tuple[list[Device], list[float]]]:
    """The devices of each group, and how fast each process reads."""
    cards = _cards(machine)
    for start in range(0, len(cards) - size + 1, size):
        group = cards[start : start + size]
        yield group, [bandwidth_of(each) for each in group]
    nodes = machine.memory_nodes
    for each in machine.devices:  # each process has a node of its own, or shares it with as many
        if each.kind == "cpu" and nodes > 1 and size % nodes == 0:
            yield [each] * size, [bandwidth_of(each) * nodes / size] * size


def _cards(machine: Machine) -> list[Device]:
    return [each for each in machine.devices if each.is_cuda]


def _sum_s(machine: Machine, device: Device, size: int, hidden_bytes: int) -> float:
    if machine.sum_s is not None:
        return machine.sum_s
    rate = bandwidth_of(device) if device.kind == "cpu" else CARDS_BYTES_PER_S
    return SUM_LATENCY_S[device.kind] + (size - 1) * hidden_bytes / rate


def _shares(planner: Planner, request: RunRequest, devices: Sequence[Device]) -> list[ShardDemand]:
    """What each of the processes on these devices needs."""
    alone = _on(planner, devices[0])
    whole = _plan_of_all(alone, request)
    shards = shard_planners(alone, whole, len(devices))
    return [
        _demand(shard, request, device) for (shard, _), device in zip(shards, devices, strict=True)
    ]


def _on(planner: Planner, device: Device) -> Planner:
    return Planner(
        planner.checkpoint,
        planner.description,
        [device],
        cpu_packs=planner.cpu_packs,
        corrections={},
    )


def _plan_of_all(planner: Planner, request: RunRequest) -> Plan:
    settled = replace(request, layer_map=None, calibration=False, cluster=None)
    return planner.plan(settled, Placement([(0, len(planner.description.spec.layers))]))


def _demand(planner: Planner, request: RunRequest, device: Device) -> ShardDemand:
    """What the model needs on a device, from a plan with all layers there."""
    alone = _on(planner, device)
    spec, plan = alone.description.spec, _plan_of_all(alone, request)
    reads = decoded_layer_bytes(plan.parameters, spec, plan.storage)
    terms = plan.breakdowns[0]
    return ShardDemand(
        [w + kv for w, kv in zip(plan.layer_bytes, plan.kv_bytes, strict=True)],
        plan.layer_bytes,
        [r + kv / plan.workload.batch for r, kv in zip(reads, plan.kv_bytes, strict=True)],
        terms.weight_bytes - sum(plan.layer_bytes),
        plan.storage[spec.head_weight].size_bytes,
        max(terms.total.expected - terms.weight_bytes - terms.kv_bytes, 0),
    )


def hop_seconds(source: Unit, target: Unit, hidden_bytes: int) -> float:
    """The time of a hidden state from one stage to the next."""
    if source.machine is target.machine:
        return HOP_SECONDS
    rate = min(source.machine.link_bytes_per_s, target.machine.link_bytes_per_s)
    return max(source.machine.latency_s, target.machine.latency_s) + hidden_bytes / rate
