"""The `fastest` strategy: the placement whose tokens take the least time; see `token_time`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from mrs.devices.device import DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.placement.placement import Demand, Placement, without_shared_cpu
from mrs.plan.placement.token_time import HOP_SECONDS, TokenReads
from mrs.units import human_bytes

#: Times this close are equal, and the placement with fewer devices wins.
EQUAL_FRACTION = 1e-9
#: Devices have exponentially many sets. This bounds the ways that are pursued for every number of
#: devices; every number of layers that these hold has an equal share.
MOST_WAYS = 500
#: Decimals of seconds when ways are compared: sums in another order are equal.
DECIMALS = 12


def fastest(
    demand: Demand,
    devices: Sequence[DeviceMemory],
    bandwidth_bytes_per_s: Sequence[float],
    reads: TokenReads,
    hop_seconds: float = HOP_SECONDS,
) -> Placement:
    """The placement with the least time per token; of equally fast ones, the fewest devices.

    Each device gets a range of consecutive layers. Devices may be visited in any order; the first
    one visited stores the non-mapped part. The search is dynamic programming over (set of used
    devices, layers placed). It is exact for a few devices, or many that hold the same ranges of
    layers; of more than `MOST_WAYS` ways to use a number of devices, only the best are pursued.

    Raises DoesNotFit with the bytes of the layers after the longest range that fits.
    """
    candidates = without_shared_cpu(devices)
    return _Search(demand, candidates, bandwidth_bytes_per_s, reads, hop_seconds).result()


class _Way(NamedTuple):
    """A way to place the first `layers` layers on the devices of a bit set.

    `device` holds the last of these layers, the way `before` the others. The devices have
    `memory_bytes` together.
    """

    seconds: float
    memory_bytes: int
    used: int
    layers: int
    device: int
    before: _Way | None


class _Search:
    """`ends[first][device][start]` is the end of the longest range from a layer that fits."""

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
        self.ends = [
            [_ends(demand, device.usable_bytes - fixed) for device in devices]
            for fixed in (demand.fixed_bytes(first=False), demand.fixed_bytes(first=True))
        ]
        kinds = list(zip(bandwidth_bytes_per_s, *self.ends, strict=False))
        self.twins = [kinds.index(kind) for kind in kinds]

    def result(self) -> Placement:
        """The fastest placement over all sets of devices that fit every layer."""
        ways, placed = [_Way(0.0, 0, 0, 0, -1, None)], 0
        finished: list[tuple[float, _Way]] = []
        for count in range(1, len(self.devices) + 1):
            by_layers = self._extended(ways)
            placed = max([placed, *by_layers])
            hops = count if count > 1 else 0
            for way in by_layers.pop(self.demand.layer_count, [])[:1]:
                finished.append((way.seconds + hops * self.hop_seconds, way))
            ways = [way for kept in by_layers.values() for way in kept]
        if not finished:
            raise self._does_not_fit(placed)
        limit = min(seconds for seconds, _ in finished) * (1 + EQUAL_FRACTION)
        return _placement(next(way for seconds, way in finished if seconds <= limit))

    def _extended(self, ways: Sequence[_Way]) -> dict[int, list[_Way]]:
        """The ways with one more device by their number of layers, of each number the best."""
        reached: dict[tuple[int, int], _Way] = {}
        for way in ways:
            unused = list(self._next_devices(way.used))
            fastest = max(map(self.bandwidth.__getitem__, unused))
            for device in unused:
                is_fastest = self.bandwidth[device] == fastest
                self._extend(way, device, reached, is_fastest=is_fastest)
        by_layers: dict[int, list[_Way]] = {}
        for way in sorted(reached.values(), key=_rank):
            by_layers.setdefault(way.layers, []).append(way)
        share = MOST_WAYS // max(1, len(by_layers))
        return {layers: kept[: max(1, share)] for layers, kept in by_layers.items()}

    def _next_devices(self, used: int) -> Iterator[int]:
        """Unused devices; of those that are as fast and hold the same ranges only the first."""
        tried = set()
        for device, twin in enumerate(self.twins):
            if not used >> device & 1 and twin not in tried:
                tried.add(twin)
                yield device

    def _extend(
        self, way: _Way, device: int, best: dict[tuple[int, int], _Way], *, is_fastest: bool
    ) -> None:
        """Try the ranges of layers after `way` that fit on the device.

        If no other unused device is faster, only the longest is of use: elsewhere its layers would
        not be read faster.
        """
        first, used = not way.used, way.used | 1 << device
        speed, start = self.bandwidth[device], way.layers
        longest = self.ends[first][device][start]
        memory_bytes = way.memory_bytes + self.devices[device].usable_bytes
        before = self.read_before[start] - (self.reads.non_mapped_bytes if first else 0)
        for end in range(longest if is_fastest else start + 1, longest + 1):
            seconds = way.seconds + (self.read_before[end] - before) / speed
            known = best.get((used, end))
            if end > start and (known is None or seconds < known.seconds):
                best[used, end] = _Way(seconds, memory_bytes, used, end, device, way)

    def _does_not_fit(self, placed: int) -> DoesNotFit:
        missing = sum(self.demand.layer_bytes[placed:]) + sum(self.demand.kv_bytes[placed:])
        if not placed:
            missing += self.demand.fixed_bytes(first=True)
        return DoesNotFit(
            f"{self.demand.layer_count - placed} of {self.demand.layer_count} layers "
            f"({human_bytes(missing)}) fit on no device",
            missing_bytes=missing,
            hint="lower --max-seq-len or --max-batch-size, or pick a smaller --isq",
        )


def _ends(demand: Demand, free_bytes: int) -> tuple[int, ...]:
    """The end of the longest range of layers in `free_bytes`, from each layer on."""
    starts = range(demand.layer_count)
    return tuple(start + demand.layers_that_fit(start, free_bytes) for start in starts)


def _rank(way: _Way) -> tuple[float, int]:
    """Less time is better, then less memory of the used devices."""
    return round(way.seconds, DECIMALS), way.memory_bytes


def _placement(way: _Way) -> Placement:
    ranges = []
    while way.before is not None:
        ranges.append((way.device, way.layers - way.before.layers))
        way = way.before
    return Placement(ranges[::-1])
