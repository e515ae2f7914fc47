"""How tensors of a checkpoint are bound to the parameters of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Literal, NamedTuple

from mrs.weights.role import Role
from mrs.weights.weight_scheme import PackedWeight

WeightTransform = Literal["plus_one", "negative_exp"]
#: How stored values become the values that the model uses, in place: norm weights that are stored
#: as offsets from one, and decay rates that are stored as logarithms. The values are tensors, but
#: plans read this module without torch.
TRANSFORMS: Mapping[WeightTransform, Callable[[Any], Any]] = {
    "plus_one": lambda values: values.add_(1),
    "negative_exp": lambda values: values.exp_().neg_(),
}


class Piece(NamedTuple):
    """Rows of one tensor of a checkpoint; a parameter consists of one or more pieces.

    A tensor is read as a matrix (rows, columns): all dimensions but the last one are flattened
    into rows. A vector has one column. `rows` is None for the whole tensor. `transform` is applied
    to the stored values. If `transposed`, the last two dimensions are swapped before rows are
    counted. If `packed` is set, `tensor` is the name of a weight that several tensors store.
    `columns` are ranges of each row, whole blocks, one after another; None for all. With
    `paired_heads`, the rows are that many heads, each with the first and then the second values of
    all rotary pairs; they are read pair by pair.
    """

    tensor: str
    rows: range | None = None
    transform: WeightTransform | None = None
    transposed: bool = False
    packed: PackedWeight | None = None
    columns: tuple[range, ...] | None = None
    paired_heads: int = 0

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of the checkpoint that are read."""
        if self.packed is None:
            return (self.tensor,)
        return tuple(name for _, name in self.packed.used)


class LowRankUpdate(NamedTuple):
    """What a LoRA adapter adds to a weight while it is loaded: scale * up @ down.

    `down` (rank, columns) and `up` (rows, rank) are read from the adapter. With a `magnitude`
    (rows), each row of the sum is then scaled to that norm (DoRA).
    """

    rank: int
    scale: float
    down: tuple[Piece, ...]
    up: tuple[Piece, ...]
    magnitude: tuple[Piece, ...] = ()


class Parameter(NamedTuple):
    """One weight of the loaded model.

    `role` decides how it is stored: `matrix`, `embedding` and `head` may be quantized; a `tower`
    (a matrix of the vision tower or projector) keeps the file's format, `--isq` does not apply;
    `dense` uses the model's dtype; a `vector`, or a small matrix that must be exact, is float32.
    `layer` is the index of the decoder layer, or None outside of the layers. `pieces` are
    concatenated along the first dimension. `updates` are added one after another. One that
    `is_shared` is in memory already, as a weight of another model.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    layer: int | None
    pieces: tuple[Piece, ...]
    updates: tuple[LowRankUpdate, ...] = ()
    is_shared: bool = False

    @property
    def columns(self) -> int:
        """Columns of the parameter as a matrix (rows, columns); 1 for a vector."""
        return self.shape[-1] if len(self.shape) > 1 else 1

    @property
    def rows(self) -> int:
        return prod(self.shape) // max(self.columns, 1)
