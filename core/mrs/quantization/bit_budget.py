"""Which format each tensor gets, so that all of them together lose least for their bytes. No torch.

This is a knapsack of one choice for each tensor. It is solved greedily on the convex hulls of loss
over bytes: the step that gains most for each byte is taken first. Up to the first step that no
longer fits, no choice of the same bytes loses less; after that, smaller steps fill what is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mrs.formats import Format

#: Formats that a tensor may get, as far as their blocks divide its rows.
CANDIDATES = (
    "Q2_K", "Q3_K", "Q4_0", "Q4_K", "Q4_1", "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0",
)  # fmt: skip


class Option(NamedTuple):
    """A format of a tensor, its bytes, and what it loses in nats: for comparisons, not exact."""

    format: Format
    size_bytes: int
    loss: float


def least_bytes(options: Mapping[str, Sequence[Option]]) -> int:
    """The bytes of all tensors, each in its smallest format."""
    return sum(min(each.size_bytes for each in some) for some in options.values())


def choose(options: Mapping[str, Sequence[Option]], most_bytes: int) -> dict[str, Option]:
    """The option of each tensor, by its name; `most_bytes` is at least `least_bytes`."""
    hulls = {name: _hull(some) for name, some in options.items()}
    chosen = {name: 0 for name in hulls}
    left_bytes = most_bytes - sum(hull[0].size_bytes for hull in hulls.values())
    assert left_bytes >= 0
    steps = [step for name, hull in hulls.items() for step in _step(name, hull, 0)]
    heapq.heapify(steps)
    while steps:
        _, name, index = heapq.heappop(steps)
        hull = hulls[name]
        more_bytes = hull[index].size_bytes - hull[chosen[name]].size_bytes
        if more_bytes > left_bytes:
            continue
        left_bytes -= more_bytes
        chosen[name] = index
        for step in _step(name, hull, index):
            heapq.heappush(steps, step)
    return {name: hulls[name][index] for name, index in chosen.items()}


def _step(name: str, hull: Sequence[Option], index: int) -> Iterator[tuple[float, str, int]]:
    """(minus the gain for each byte, name, index of the better option), if there is one."""
    if index + 1 < len(hull):
        one, other = hull[index : index + 2]
        gain = (one.loss - other.loss) / (other.size_bytes - one.size_bytes)
        yield -gain, name, index + 1


def _hull(options: Sequence[Option]) -> list[Option]:
    """The lower convex hull of loss over bytes: each step gains less for a byte than the last."""
    hull: list[Option] = []
    for each in sorted(options, key=lambda each: (each.size_bytes, each.loss)):
        if hull and each.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-2], each):
            hull.pop()
        hull.append(each)
    return hull


def _gain(one: Option, other: Option) -> float:
    return (one.loss - other.loss) / (other.size_bytes - one.size_bytes)
