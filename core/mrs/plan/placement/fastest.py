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
    demand: Demand,
    devices: Sequence[DeviceMemory],
    bandwidth_bytes_per_s: Sequence[float],
    reads: TokenReads,
    hop_seconds: float = HOP_SECONDS,
) -> Placement:
    """The placement with the least time per token; of equally fast ones, the fewest devices.

    Each device gets a range of consecutive layers. Devices may be visited in any order; the first
    one visited stores the non-mapped part. The result is exact: dynamic programming over (set of
    used devices, layers placed). Devices with equal memory and bandwidth are interchangeable.

    Raises DoesNotFit with the bytes of the layers after the longest range that fits.
    """
    candidates = without_shared_cpu(devices)
    search = _Search(demand, candidates, bandwidth_bytes_per_s, reads, hop_seconds)
    search.run()
    return search.result()


@dataclass(frozen=True)
class _Step:
    """The fastest way to a state: its time and the range of layers that was placed last."""

    seconds: float
    device: int
    start: int
    previous: int


class _Search:
    """A state is a bit set of used devices; `steps[state][n]` is its best step for `n` layers."""

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
        """Unused devices; of equal devices only the first."""
        tried = set()
        for device, memory in enumerate(self.devices):
            twin = (memory.kind, memory.available_bytes, self.bandwidth[device])
            if not used >> device & 1 and twin not in tried:
                tried.add(twin)
                yield device

    def _extend(self, used: int, start: int, seconds: float, device: int) -> None:
        """Try every range of layers from `start` that fits on the device."""
        first = not used
        free_bytes = self.devices[device].usable_bytes - self.demand.fixed_bytes(first=first)
        state = used | 1 << device
        known = self.steps.setdefault(state, {})
        fixed_read = self.reads.non_mapped_bytes if first else 0
        for count in range(1, self.demand.layers_that_fit(start, free_bytes) + 1):
            end = start + count
            read = fixed_read + self.read_before[end] - self.read_before[start]
            total = seconds + read / self.bandwidth[device]
            if end not in known or total < known[end].seconds:
                known[end] = _Step(total, device, start, used)

    def result(self) -> Placement:
        """The fastest placement over all sets of devices that fit every layer."""
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
        return Placement(self._ranges(finished[best][1]))

    def _ranges(self, state: int) -> list[tuple[int, int]]:
        ranges, end = [], self.demand.layer_count
        while state:
            step = self.steps[state][end]
            ranges.append((step.device, end - step.start))
            state, end = step.previous, step.start
        return ranges[::-1]

    def _does_not_fit(self) -> DoesNotFit:
        placed = max(max(steps, default=0) for steps in self.steps.values())
        missing = sum(self.demand.layer_bytes[placed:]) + sum(self.demand.kv_bytes[placed:])
        if not placed:
            missing += self.demand.fixed_bytes(first=True)
        return DoesNotFit(
            f"{self.demand.layer_count - placed} of {self.demand.layer_count} layers "
            f"({human_bytes(missing)}) fit on no device",
            missing_bytes=missing,
            hint="lower --max-seq-len or --max-batch-size, or pick a smaller --isq",
        )
