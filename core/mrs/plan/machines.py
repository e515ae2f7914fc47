"""A plan over machines: which device of which machine has which layers, and how fast that is.

A token of one sequence passes all stages one after another; many sequences keep all stages busy:

    seconds of a token  = sum of stages (bytes read / bandwidth) + sum of hops
    tokens a second of many sequences <= 1 / seconds of the slowest stage
    seconds of a hop    = latency + bytes of a hidden state / rate of the slower link
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, permutations

from mrs.devices.bandwidth import bandwidth_of
from mrs.devices.device import Device
from mrs.devices.machine import Machine
from mrs.plan.cost import decoded_layer_bytes
from mrs.plan.placement.placement import Placement
from mrs.plan.placement.token_time import HOP_SECONDS
from mrs.plan.planner import Planner
from mrs.request import RunRequest

#: One message between machines by TCP over Ethernet, one way.
LINK_LATENCY_S = 75e-6
#: With more machines than this, only their given order is tried.
_MOST_PERMUTED = 5


@dataclass(frozen=True)
class MachineStage:
    """Layers on one device of one machine, and the seconds in which it reads them once."""

    machine: str
    device: str
    layers: range
    weight_bytes: int
    kv_bytes: int
    free_bytes: int
    seconds: float


@dataclass(frozen=True)
class MachinesPlan:
    """The fastest placement for one sequence; no stages if the model does not fit."""

    stages: tuple[MachineStage, ...]
    token_seconds: float
    hop_seconds: float
    unused: tuple[str, ...]
    missing_bytes: int = 0

    @property
    def tokens_per_s(self) -> float:
        return 1 / self.token_seconds if self.token_seconds else 0.0

    @property
    def most_tokens_per_s(self) -> float:
        """The limit for many sequences whose steps do not share reads."""
        slowest = max((stage.seconds for stage in self.stages), default=0.0)
        return 1 / slowest if slowest else 0.0


@dataclass(frozen=True)
class _Demand:
    """Memory and reads of a model as one device stores it."""

    memory: Sequence[int]
    weights: Sequence[int]
    reads: Sequence[float]
    head_bytes: int
    head_read: float
    fixed_bytes: int


@dataclass(frozen=True)
class _Unit:
    machine: Machine
    device: Device
    demand: _Demand


def plan_machines(
    planner: Planner, request: RunRequest, machines: Sequence[Machine]
) -> MachinesPlan:
    """Plan on machines of which the first is the head. Other machines and devices may be unused."""
    units = [
        [_Unit(machine, each, _demand(planner, request, each)) for each in machine.devices]
        for machine in machines
    ]
    hidden_bytes = 4 * planner.description.spec.hidden_size
    others = units[1:]
    orders = permutations(others) if len(others) < _MOST_PERMUTED else [tuple(others)]
    plans = [
        _fastest([*units[0], *(unit for group in order for unit in group)], hidden_bytes)
        for order in orders
    ]
    found = [each for each in plans if each is not None]
    if found:
        best = min(found, key=lambda each: (each.token_seconds, len(each.stages)))
        used = {stage.machine for stage in best.stages}
        return replace(best, unused=tuple(m.name for m in machines if m.name not in used))
    return MachinesPlan((), 0.0, 0.0, (), _missing(units))


def _demand(planner: Planner, request: RunRequest, device: Device) -> _Demand:
    """What the model needs on a device, from a plan with all layers there."""
    description = planner.description
    alone = Planner(
        planner.checkpoint, description, [device], cpu_packs=planner.cpu_packs, corrections={}
    )
    layers = len(description.spec.layers)
    settled = replace(request, layer_map=None, calibration=False, cluster=None)
    plan = alone.plan(settled, Placement([(0, layers)]))
    reads = decoded_layer_bytes(plan.parameters, description.spec, plan.storage)
    terms = plan.breakdowns[0]
    head = description.spec.head_weight
    return _Demand(
        [w + kv for w, kv in zip(plan.layer_bytes, plan.kv_bytes, strict=True)],
        plan.layer_bytes,
        [r + kv / plan.workload.batch for r, kv in zip(reads, plan.kv_bytes, strict=True)],
        terms.weight_bytes - sum(plan.layer_bytes),
        plan.storage[head].size_bytes,
        max(terms.total.expected - terms.weight_bytes - terms.kv_bytes, 0),
    )


def _fastest(units: Sequence[_Unit], hidden_bytes: int) -> MachinesPlan | None:
    """The fastest way through units in this order, each of which may be left out but the first.

    `best[u][end]` is the least time with layers up to `end`, of which unit `u` has the last.
    """
    count = len(units[0].demand.memory)
    reads = [list(accumulate(unit.demand.reads, initial=0.0)) for unit in units]
    memory = [list(accumulate(unit.demand.memory, initial=0)) for unit in units]
    best: list[dict[int, tuple[float, int, int]]] = [{} for _ in units]
    for n, unit in enumerate(units):
        free_bytes = unit.device.memory.usable_bytes - unit.demand.fixed_bytes
        is_first = unit.machine is units[0].machine
        starts = [(0.0, -1, 0)] if is_first else []
        if n:
            starts += [(s, m, e) for m in range(n) for e, (s, _, _) in best[m].items()]
        for seconds, before, start in starts:
            left = free_bytes - (unit.demand.head_bytes if before < 0 else 0)
            read = unit.demand.head_read if before < 0 else 0.0
            hop = 0.0 if before < 0 else _hop(units[before], unit, hidden_bytes)
            for end in range(start + 1, count + 1):
                if memory[n][end] - memory[n][start] > left:
                    break
                own = (reads[n][end] - reads[n][start] + read) / bandwidth_of(unit.device)
                total = seconds + hop + own
                if end not in best[n] or total < best[n][end][0]:
                    best[n][end] = total, before, start
    return _traced(units, best, count, hidden_bytes)


def _traced(
    units: Sequence[_Unit],
    best: Sequence[dict[int, tuple[float, int, int]]],
    count: int,
    hidden_bytes: int,
) -> MachinesPlan | None:
    """The stages of the best way, with the hop back to the head."""
    whole = []
    for last in range(len(units)):
        if count in best[last]:
            path, unit, end = [], last, count
            while unit >= 0:
                _, before, start = best[unit][end]
                path.append((unit, range(start, end)))
                unit, end = before, start
            first = path[-1][0]
            back = _hop(units[last], units[first], hidden_bytes) if last != first else 0.0
            whole.append((best[last][count][0] + back, path[::-1]))
    if not whole:
        return None
    seconds, path = min(whole, key=lambda each: (each[0], len(each[1])))
    stages = tuple(_stage(units[n], layers, n == path[0][0]) for n, layers in path)
    return MachinesPlan(stages, seconds, seconds - sum(each.seconds for each in stages), ())


def _stage(unit: _Unit, layers: range, is_first: bool) -> MachineStage:
    demand, own = unit.demand, slice(layers.start, layers.stop)
    weights = sum(demand.weights[own])
    kv_bytes = sum(demand.memory[own]) - weights
    read = sum(demand.reads[own]) + (demand.head_read if is_first else 0)
    weights += demand.head_bytes if is_first else 0
    free_bytes = unit.device.memory.usable_bytes - demand.fixed_bytes - weights - kv_bytes
    seconds = read / bandwidth_of(unit.device)
    name, label = unit.machine.name, unit.device.label
    return MachineStage(name, label, layers, weights, kv_bytes, free_bytes, seconds)


def _hop(source: _Unit, target: _Unit, hidden_bytes: int) -> float:
    if source.machine is target.machine:
        return HOP_SECONDS
    rate = min(source.machine.link_bytes_per_s, target.machine.link_bytes_per_s)
    return LINK_LATENCY_S + hidden_bytes / rate


def _missing(units: Sequence[Sequence[_Unit]]) -> int:
    """How much memory all devices together lack, at least one byte."""
    demand = units[0][0].demand
    free_bytes = sum(
        max(0, unit.device.memory.usable_bytes - unit.demand.fixed_bytes)
        for group in units
        for unit in group
    )
    return max(1, sum(demand.memory) + demand.head_bytes - free_bytes)
