"""Which tensors of a checkpoint become which parameters of a model."""

from __future__ import annotations

from math import prod
from typing import Literal, NamedTuple

#: What is done to stored numbers: norm weights may be stored as offsets from one, and rates of
#: decay, which are negative, as logarithms of their size.
WeightTransform = Literal["plus_one", "negative_exp"]

Role = Literal["matrix", "embedding", "head", "tower", "dense", "vector"]


class Scales(NamedTuple):
    """A tensor with one scale for each `tile` (rows, columns) of another one's numbers."""

    tensor: str
    tile: tuple[int, int]


class Piece(NamedTuple):
    """Where a parameter's numbers lie in a checkpoint: rows of one tensor.

    A tensor of more dimensions is a table too: all but the last one number its rows. Where the
    parameter has one dimension, every number is a row. `rows` is None for the whole tensor.
    `transform` is what the stored numbers need. With `transposed` the last two dimensions are
    swapped before rows are counted. `scales` belong to numbers that are stored without.
    """

    tensor: str
    rows: range | None = None
    transform: WeightTransform | None = None
    transposed: bool = False
    scales: Scales | None = None


class Parameter(NamedTuple):
    """One tensor of the running model.

    `matrix`, `embedding` and `head` may be kept quantized. A `tower` is a matrix of the part that
    sees, which `--isq` leaves as it is; `dense` ones are kept in the model's type, and a `vector` (or a small matrix that must be exact) in float32.
    `layer` is None for what is not mapped to a device with a layer. `pieces` are stacked along
    the first dimension.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    layer: int | None
    pieces: tuple[Piece, ...]

    @property
    def columns(self) -> int:
        """Numbers in a row, where it is seen as a table."""
        return self.shape[-1] if len(self.shape) > 1 else 1

    @property
    def rows(self) -> int:
        return prod(self.shape) // max(self.columns, 1)
