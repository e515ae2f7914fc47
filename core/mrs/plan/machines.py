"""A plan over machines: which layers each process of each machine has, and how fast that is.

A token of one sequence passes all stages one after another; many sequences keep all stages busy:

    seconds of a token  = sum of stages (bytes read / bandwidth + sums) + sum of hops
    tokens a second of many sequences <= 1 / seconds of the slowest stage
    seconds of a hop    = latency + bytes of a hidden state / rate, both of the slower link

Stages are single devices (a pipeline), or groups of as many processes each that share their layers
(tensor parallelism). Each size of groups is planned, and the fastest one is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import NamedTuple

from mrs.devices.machine import Machine
from mrs.errors import Unsupported, UsageError
from mrs.plan.machine_units import Unit, hop_seconds, largest_group, units_of
from mrs.plan.planner import Planner
from mrs.request import RunRequest

#: With more machines than this, only their given order is tried.
_MOST_PERMUTED = 5


@dataclass(frozen=True)
class MachineStage:
    """Layers of one device of a machine, or of several processes that share them.

    `seconds` are the time of a token. `free_bytes` are those of the device that has the least.
    """

    machine: str
    device: str
    layers: range
    weight_bytes: int
    kv_bytes: int
    free_bytes: int
    seconds: float
    processes: int = 1


@dataclass(frozen=True)
class GroupOption:
    """What was planned with groups of `group_size` processes; `refusal` says why that cannot be."""

    group_size: int
    stages: int = 0
    token_seconds: float = 0.0
    slowest_seconds: float = 0.0
    refusal: str = ""


@dataclass(frozen=True)
class MachinesPlan:
    """The fastest placement; no stages if the model does not fit.

    It is the fastest for one sequence, or for many if several shall run at the same time.
    `group_size` processes share the layers of a stage. `choices` are all sizes that were planned.
    """

    stages: tuple[MachineStage, ...]
    token_seconds: float
    hop_seconds: float
    unused: tuple[str, ...]
    missing_bytes: int = 0
    group_size: int = 1
    choices: tuple[GroupOption, ...] = ()
    is_for_many: bool = False

    @property
    def tokens_per_s(self) -> float:
        return 1 / self.token_seconds if self.token_seconds else 0.0

    @property
    def slowest_seconds(self) -> float:
        return max((stage.seconds for stage in self.stages), default=0.0)

    @property
    def most_tokens_per_s(self) -> float:
        """The limit for many sequences whose steps do not share reads."""
        return 1 / self.slowest_seconds if self.stages else 0.0

    def cost(self) -> tuple[float, float, int]:
        """What is to be small."""
        pair = self.token_seconds, self.slowest_seconds
        return (*(pair[::-1] if self.is_for_many else pair), len(self.stages))


def plan_machines(
    planner: Planner, request: RunRequest, machines: Sequence[Machine]
) -> MachinesPlan:
    """Plan on these machines. The first is the coordinator; others may be unused."""
    single = [units_of(planner, request, each, 1) for each in machines]
    hidden_bytes = 4 * planner.description.spec.hidden_size
    is_for_many = request.max_batch_size > 1
    plans: dict[int, MachinesPlan] = {}
    choices = []
    for size in (1, *_group_sizes(machines)):
        try:
            units = single if size == 1 else [units_of(planner, request, m, size) for m in machines]
        except (Unsupported, UsageError) as error:
            choices.append(GroupOption(size, refusal=str(error).splitlines()[0]))
            continue
        best = _best(units, hidden_bytes, is_for_many=is_for_many)
        if best is None:
            choices.append(GroupOption(size, refusal=_no_plan(units)))
            continue
        plans[size] = best
        choices.append(
            GroupOption(size, len(best.stages), best.token_seconds, best.slowest_seconds)
        )
    if not plans:
        return MachinesPlan((), 0.0, 0.0, (), _missing(single), choices=tuple(choices))
    size = min(plans, key=lambda each: (plans[each].cost(), each))
    used = {stage.machine for stage in plans[size].stages}
    return replace(
        plans[size],
        unused=tuple(each.name for each in machines if each.name not in used),
        group_size=size,
        choices=tuple(choices),
    )


def _group_sizes(machines: Sequence[Machine]) -> list[int]:
    """The sizes of groups worth planning: powers of two, and all of the largest machine."""
    most = max(map(largest_group, machines))
    sizes = {1 << bits for bits in range(1, most.bit_length()) if 1 << bits <= most}
    return sorted(sizes | {most} - {1})


def _no_plan(units: Sequence[Sequence[Unit]]) -> str:
    return "they do not fit" if units[0] else "the first machine has too few devices or nodes"


def _best(
    units: Sequence[Sequence[Unit]], hidden_bytes: int, *, is_for_many: bool
) -> MachinesPlan | None:
    """The fastest plan over the units of each machine, in any order of all but the first."""
    first, *others = units
    orders = permutations(others) if len(others) < _MOST_PERMUTED else [tuple(others)]
    plans = []
    for order in orders:
        every = [*first, *(unit for group in order for unit in group)]
        plan = _fastest(every, len(first), hidden_bytes, is_for_many=is_for_many)
        plans += [] if plan is None else [plan]
    return min(plans, key=MachinesPlan.cost, default=None)


class _Way(NamedTuple):
    """A way to the end of some layers: the time of a token, of its slowest stage, and its last one.

    `before` and `start` are the unit before the last one, or -1, and where the last one begins.
    """

    seconds: float
    slowest: float
    before: int
    start: int

    def cost(self, *, is_for_many: bool) -> tuple[float, float]:
        return (self.slowest, self.seconds) if is_for_many else (self.seconds, self.slowest)


def _fastest(
    units: Sequence[Unit], firsts: int, hidden_bytes: int, *, is_for_many: bool
) -> MachinesPlan | None:
    """The fastest way through units in this order, each of which may be left out.

    One of the `firsts` has the first layers. `best[u][end]` is the best way to have all layers up
    to `end`, the last of them in unit `u`.
    """
    best: list[dict[int, _Way]] = [{} for _ in units]
    for n, unit in enumerate(units):
        ways = [(-1, 0, _Way(0.0, 0.0, -1, 0))] if n < firsts else []
        ways += [(m, end, way) for m in range(n) for end, way in best[m].items()]
        for before, start, way in ways:
            is_first = before < 0
            hop = 0.0 if is_first else hop_seconds(units[before], unit, hidden_bytes)
            for end in range(start + 1, unit.layers + 1):
                layers = range(start, end)
                if not unit.fits(layers, is_first=is_first):
                    break
                stage_s = unit.seconds(layers, is_first=is_first)
                seconds = way.seconds + hop + stage_s
                extended = _Way(seconds, max(way.slowest, stage_s), before, start)
                known = best[n].get(end)
                if known is None or extended.cost(is_for_many=is_for_many) < known.cost(
                    is_for_many=is_for_many
                ):
                    best[n][end] = extended
    plans = [
        _traced(units, best, last, hidden_bytes, is_for_many=is_for_many)
        for last, unit in enumerate(units)
        if unit.layers in best[last]
    ]
    return min(plans, key=MachinesPlan.cost, default=None)


def _traced(
    units: Sequence[Unit],
    best: Sequence[dict[int, _Way]],
    last: int,
    hidden_bytes: int,
    *,
    is_for_many: bool,
) -> MachinesPlan:
    """The stages of the best way that ends with a unit, with the hop back to the head."""
    path, unit, end = [], last, units[last].layers
    while unit >= 0:
        way = best[unit][end]
        path.append((unit, range(way.start, end)))
        unit, end = way.before, way.start
    path.reverse()
    first = path[0][0]
    back = hop_seconds(units[last], units[first], hidden_bytes) if last != first else 0.0
    seconds = best[last][units[last].layers].seconds + back
    stages = tuple(_stage(units[n], layers, is_first=n == first) for n, layers in path)
    between = seconds - sum(each.seconds for each in stages)
    return MachinesPlan(stages, seconds, between, (), is_for_many=is_for_many)


def _stage(unit: Unit, layers: range, *, is_first: bool) -> MachineStage:
    demands, stage = [each.demand for each in unit.processes], slice(layers.start, layers.stop)
    weights = sum(sum(each.weights[stage]) for each in demands)
    kv_bytes = sum(sum(each.memory[stage]) for each in demands) - weights
    weights += sum(each.head_bytes for each in demands) if is_first else 0
    return MachineStage(
        unit.machine.name,
        unit.label,
        layers,
        weights,
        kv_bytes,
        min(pool.left(layers, is_first=is_first) for pool in unit.pools),
        unit.seconds(layers, is_first=is_first),
        len(demands),
    )


def _missing(units: Sequence[Sequence[Unit]]) -> int:
    """How much memory all devices together lack, at least one byte."""
    demand = units[0][0].processes[0].demand
    pools = [pool for group in units for unit in group for pool in unit.pools]
    free_bytes = sum(max(0, pool.free_bytes) for pool in pools)
    return max(1, sum(demand.memory) + demand.head_bytes - free_bytes)
