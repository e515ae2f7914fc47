"""The `fastest` strategy: the placement whose tokens take the least time; see `token_time`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mrs.devices.device import DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.placement.placement import Demand, Placement, without_shared_cpu
from mrs.plan.placement.token_time import HOP_SECONDS, TokenReads
from mrs.units import human_bytes

#: Times this close are equal, and the placement with fewer devices wins.
EQUAL_FRACTION = 1e-9


def fastest(
    *,
    layer_bytes: Sequence[int],
    non_mapped_bytes: int,
    kv_bytes_per_layer: int | Sequence[int],
    mapped_act_bytes: int,
    non_mapped_act_bytes: int,
    devices: Sequence[DeviceMemory],
    bandwidth_bytes_per_s: Sequence[float],
    reads: TokenReads | None = None,
    hop_seconds: float = HOP_SECONDS,
) -> Placement:
    """The placement of consecutive runs with the least time a token, then the fewest devices.

    Devices may be visited in any order; the first one visited holds the non-mapped part.
    `reads` defaults to every weight and the whole KV. Exact: a dynamic programme over (devices
    used, layers placed), where devices with equal memory and bandwidth are interchangeable.

    Raises DoesNotFit with the bytes of the layers beyond the longest run that fits.
    """
    demand = Demand.of(
        layer_bytes, non_mapped_bytes, kv_bytes_per_layer, mapped_act_bytes, non_mapped_act_bytes
    )
    candidates = without_shared_cpu(devices)
    if reads is None:
        totals = [w + kv for w, kv in zip(demand.layer_bytes, demand.kv_bytes, strict=True)]
        reads = TokenReads(totals, non_mapped_bytes)
    search = _Search(demand, candidates, bandwidth_bytes_per_s, reads, hop_seconds)
    search.run()
    return search.result()


@dataclass(frozen=True)
class _Step:
    """The best way to a state: its time and the run that was placed last."""

    seconds: float
    device: int
    start: int
    previous: int


class _Search:
    """States are a bit set of devices; each knows its best step for every number of layers."""

    def __init__(
        self,
        demand: Demand,
        devices: Sequence[DeviceMemory],
        bandwidth_bytes_per_s: Sequence[float],
        reads: TokenReads,
        hop_seconds: float,
    ) -> None:
        self.demand = demand
        self.devices = devices
        self.bandwidth = bandwidth_bytes_per_s
        self.reads = reads
        self.hop_seconds = hop_seconds
        self.read_before = list(accumulate(reads.layer_bytes, initial=0))
        self.steps: dict[int, dict[int, _Step]] = {0: {0: _Step(0.0, -1, 0, 0)}}

    def run(self) -> None:
        for used in range(1 << len(self.devices)):
            for start, step in self.steps.get(used, {}).items():
                for device in self._next_devices(used):
                    self._extend(used, start, step.seconds, device)

    def _next_devices(self, used: int) -> Iterator[int]:
        """Unused devices, and of equal ones only the first."""
        seen = set()
        for device, memory in enumerate(self.devices):
            twin = (memory.kind, memory.available_bytes, self.bandwidth[device])
            if not used >> device & 1 and twin not in seen:
                seen.add(twin)
                yield device

    def _extend(self, used: int, start: int, seconds: float, device: int) -> None:
        """Place every run from `start` that fits the device."""
        first = not used
        room = self.devices[device].usable_bytes - self.demand.fixed_bytes(first=first)
        state = used | 1 << device
        known = self.steps.setdefault(state, {})
        fixed_read = self.reads.non_mapped_bytes if first else 0
        for count in range(1, self.demand.layers_that_fit(start, room) + 1):
            end = start + count
            read = fixed_read + self.read_before[end] - self.read_before[start]
            total = seconds + read / self.bandwidth[device]
            if end not in known or total < known[end].seconds:
                known[end] = _Step(total, device, start, used)

    def result(self) -> Placement:
        """The least time over all sets that hold every layer."""
        finished: dict[int, tuple[float, int]] = {}
        for state, steps in self.steps.items():
            step = steps.get(self.demand.layer_count)
            if step is not None:
                count = state.bit_count()
                hops = count if count > 1 else 0
                candidate = (step.seconds + hops * self.hop_seconds, state)
                finished[count] = min(candidate, finished.get(count, candidate))
        if not finished:
            raise self._does_not_fit()
        limit = min(seconds for seconds, _ in finished.values()) * (1 + EQUAL_FRACTION)
        best = min(count for count, (seconds, _) in finished.items() if seconds <= limit)
        return Placement(self._runs(finished[best][1]))

    def _runs(self, state: int) -> list[tuple[int, int]]:
        runs, end = [], self.demand.layer_count
        while state:
            step = self.steps[state][end]
            runs.append((step.device, end - step.start))
            state, end = step.previous, step.start
        return runs[::-1]

    def _does_not_fit(self) -> DoesNotFit:
        placed = max(max(steps, default=0) for steps in self.steps.values())
        missing = sum(self.demand.layer_bytes[placed:]) + sum(self.demand.kv_bytes[placed:])
        if not placed:
            missing += self.demand.fixed_bytes(first=True)
        return DoesNotFit(
            f"{self.demand.layer_count - placed} of {self.demand.layer_count} layers "
            f"({human_bytes(missing)}) find no device",
            missing_bytes=missing,
            hint="lower --max-seq-len or --max-batch-size, or pick a smaller --isq",
        )
