"""How tensors of a checkpoint are bound to the parameters of a model."""

from __future__ import annotations

from math import prod
from typing import Literal, NamedTuple

#: How stored values become the values that the model uses: `plus_one` is w + 1 (norm weights that
#: are stored as offsets from one), `negative_exp` is -exp(w) (decay rates stored as logarithms).
WeightTransform = Literal["plus_one", "negative_exp"]

Role = Literal["matrix", "embedding", "head", "tower", "dense", "vector"]


class Scales(NamedTuple):
    """The scales of a quantized tensor: one for each `tile` (rows, columns) of its values."""

    tensor: str
    tile: tuple[int, int]


class Quantization(NamedTuple):
    """How the names of a checkpoint's quantized tensors are formed.

    A quantized weight `name` is stored as the tensors `name + values_suffix` and
    `name + scales_suffix`, with one scale for each `tile` (rows, columns) of values.
    """

    values_suffix: str
    scales_suffix: str
    tile: tuple[int, int]


class Piece(NamedTuple):
    """Rows of one tensor of a checkpoint; a parameter consists of one or more pieces.

    A tensor is read as a matrix (rows, columns): all dimensions but the last one are flattened
    into rows. A vector has one column. `rows` is None for the whole tensor. `transform` is applied
    to the stored values. If `transposed`, the last two dimensions are swapped before rows are
    counted. `scales` is set if the tensor is quantized and its scales are a tensor of their own.
    """

    tensor: str
    rows: range | None = None
    transform: WeightTransform | None = None
    transposed: bool = False
    scales: Scales | None = None


class Parameter(NamedTuple):
    """One weight of the loaded model.

    `role` decides how it is stored: `matrix`, `embedding` and `head` may be quantized; a `tower`
    (a matrix of the vision tower or projector) keeps the file's format, `--isq` does not apply;
    `dense` uses the model's dtype; a `vector`, or a small matrix that must be exact, is float32.
    `layer` is the index of the decoder layer, or None outside of the layers. `pieces` are
    concatenated along the first dimension.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    layer: int | None
    pieces: tuple[Piece, ...]

    @property
    def columns(self) -> int:
        """Columns of the parameter as a matrix (rows, columns); 1 for a vector."""
        return self.shape[-1] if len(self.shape) > 1 else 1

    @property
    def rows(self) -> int:
        return prod(self.shape) // max(self.columns, 1)
