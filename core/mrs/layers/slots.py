"""Slots: the weights of a model by name and shape, independent of any file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from mrs.layers.norm.spec import Norm
from mrs.weights.role import Role

#: Kinds of weights that some containers store transformed: `norm` and `final_norm` (by some
#: families as offsets from one), `offset_norm` (always as an offset from one) and `decay` (as a
#: logarithm).
WeightKind = Literal["plain", "norm", "final_norm", "offset_norm", "decay"]


@dataclass(frozen=True)
class Slot:
    """One weight of a model, by this project's name for it, with an optional bias.

    With `experts` there is one weight per expert, and `{expert}` in `name` stands for its index.
    If a file interleaves the slot with others in a fused tensor, its rows are split into
    `interleave_groups` groups of equal size.

    Processes that share a weight have a part each of the dimension that is smaller for them. If it
    consists of several sections, of `row_sections` rows or `column_sections` columns, they have a
    part of each section. The output of a weight whose columns are shared is a part of a sum; that
    of others is if it `is_summed`.
    """

    name: str
    shape: tuple[int, ...]
    role: Role = "matrix"
    bias: bool = False
    kind: WeightKind = "plain"
    suffix: str = ".weight"
    experts: int = 0
    interleave_groups: int = 1
    row_sections: tuple[int, ...] = ()
    column_sections: tuple[int, ...] = ()
    is_summed: bool = False

    @property
    def rows(self) -> int:
        """Rows of the weight as a matrix: the product of all dimensions but the last one."""
        return prod(self.shape[:-1]) if len(self.shape) > 1 else self.shape[0]


def norm_slots(
    name: str, shape: int | tuple[int, int], norm: Norm, *, kind: WeightKind = "norm"
) -> Iterator[Slot]:
    """The weight of a norm over `shape` values, or of each of some heads; none if not learned."""
    if norm.learned:
        sizes = (shape,) if isinstance(shape, int) else shape
        yield Slot(name, sizes, "vector", norm.bias, kind=kind)
