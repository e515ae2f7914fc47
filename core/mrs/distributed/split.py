"""Which layers each rank computes: consecutive ones, so that the slowest rank is fast."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate

from mrs.errors import DoesNotFit, UsageError
from mrs.plan.placement.layer_map import FLAG, parse_layer_map
from mrs.units import human_bytes


@dataclass(frozen=True)
class RankMemory:
    """What a rank has for layers; `fixed_bytes` of it are for other things, and are read."""

    name: str
    free_bytes: int
    bytes_per_s: float
    fixed_bytes: int = 0


def split_layers(
    layer_bytes: Sequence[int], ranks: Sequence[RankMemory], joined: AbstractSet[int] = frozenset()
) -> list[range]:
    """A range of layers for each rank, at least one, in order.

    `layer_bytes` are weights and KV cache. The rank that needs the most time to read its bytes
    needs as little as possible, so that the ranks keep each other busy. The layers `joined` stay
    with the one before them. Raises UsageError for fewer layers than ranks, and DoesNotFit.
    """
    count = len(layer_bytes)
    most = count - len(joined)
    if most < len(ranks):
        together = f", {len(joined)} of which belong to the one before," if joined else ""
        raise UsageError(
            f"{count} layers{together} cannot be split over {len(ranks)} processes",
            hint=f"use at most {most - 1} workers" if most > 1 else "leave out --workers",
        )
    before = list(accumulate(layer_bytes, initial=0))
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for number, rank in enumerate(ranks):
        left = len(ranks) - number - 1
        found = _extended(best[-1], before, rank, count - left)
        best.append({end: each for end, each in found.items() if end not in joined})
    if count not in best[-1]:
        free_bytes = sum(max(0, rank.free_bytes - rank.fixed_bytes) for rank in ranks)
        missing = max(1, before[-1] - free_bytes)
        raise DoesNotFit(
            f"{count} layers of {human_bytes(before[-1])} do not fit into {len(ranks)} processes",
            missing_bytes=missing,
            where="; ".join(f"{each.name} has {human_bytes(each.free_bytes)}" for each in ranks),
            hint="add a worker, lower --max-seq-len, or pick a smaller --isq",
        )
    ranges, end = [], count
    for steps in reversed(best[1:]):
        start = steps[end][1]
        ranges.append(range(start, end))
        end = start
    return ranges[::-1]


def _extended(
    known: dict[int, tuple[float, int]], before: Sequence[int], rank: RankMemory, most: int
) -> dict[int, tuple[float, int]]:
    """By the layers that this rank and those before it have: the longest time, and its start."""
    found: dict[int, tuple[float, int]] = {}
    for start, (seconds, _) in known.items():
        for end in range(start + 1, most + 1):
            own_bytes = before[end] - before[start] + rank.fixed_bytes
            if own_bytes > rank.free_bytes:
                break
            longest = max(seconds, own_bytes / rank.bytes_per_s)
            if end not in found or longest < found[end][0]:
                found[end] = longest, start
    return found


def mapped_layers(
    text: str, layers: int, ranks: int, joined: AbstractSet[int] = frozenset()
) -> list[range]:
    """The layers that `--num-device-layers` gives each rank: `0:3;1:2`. Raises UsageError.

    `joined` as in `split_layers`.
    """
    pairs = dict(parse_layer_map(text))
    counts = [pairs.get(rank, 0) for rank in range(ranks)]
    if sum(counts) != layers or 0 in counts or len(pairs) != ranks:
        raise UsageError(
            f"{text!r} does not give each of {ranks} processes some of {layers} layers",
            where=FLAG,
            hint="with workers its pairs are rank:layers, such as 0:16;1:16",
        )
    ends = list(accumulate(counts))
    if divided := joined & set(ends):
        first = last = min(divided)
        while first in joined:
            first -= 1
        while last + 1 in joined:
            last += 1
        raise UsageError(
            f"{text!r} divides the layers {first} to {last}",
            where=FLAG,
            hint="these share what they compute, and belong to one process",
        )
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
