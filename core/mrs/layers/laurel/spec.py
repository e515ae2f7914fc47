"""A low-rank residual in parallel with a layer's mixer (LAuReL, arXiv 2411.07501)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class Laurel:
    """What a layer adds to its mixer's output: y + norm(right(left(y))) of the mixer's input y.

    The sum of x, the mixer's output and this is divided by sqrt(2).
    """

    rank: int
    norm: Norm

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in one layer."""
        yield Slot("laurel.left", (self.rank, hidden_size))
        yield Slot("laurel.right", (hidden_size, self.rank))
        yield from norm_slots("laurel.norm", hidden_size, self.norm)
