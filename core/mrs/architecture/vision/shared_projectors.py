"""Projectors that several families share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.vision_slots import vision_slots
from mrs.config.activations import Activation
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class MlpProjector:
    """down(activation(up(x))), from `input_size` values of the tower to the hidden size.

    It is `inner` wide inside, or as wide as the language model.
    """

    input_size: int
    activation: Activation = "gelu"
    bias: bool = True
    inner: int | None = None


@vision_slots.register
def _(projector: MlpProjector, hidden_size: int) -> Iterator[Slot]:
    inner = projector.inner or hidden_size
    yield Slot("projector.up", (inner, projector.input_size), bias=projector.bias)
    yield Slot("projector.down", (hidden_size, inner), bias=projector.bias)


@dataclass(frozen=True)
class FoldedMlpProjector:
    """down(activation(up(norm(x)))), where x concatenates `fold` x `fold` patches (pixel shuffle).

    The MLP is `inner` wide, or as wide as the language model. There may be no norm. Each of an
    image's `views` is folded on its own; the tower has `shrunk` its edges by that factor. With
    `channels_first` the values of a channel are adjacent in x, and not those of a patch.
    """

    input_size: int
    fold: int
    activation: Activation
    norm: Norm | None
    inner: int | None = None
    bias: bool = True
    channels_first: bool = False
    shrunk: int = 1


@vision_slots.register
def _(projector: FoldedMlpProjector, hidden_size: int) -> Iterator[Slot]:
    folded, inner = projector.input_size * projector.fold**2, projector.inner or hidden_size
    if projector.norm is not None:
        yield from norm_slots("projector.norm", folded, projector.norm)
    yield Slot("projector.up", (inner, folded), bias=projector.bias)
    yield Slot("projector.down", (hidden_size, inner), bias=projector.bias)


@dataclass(frozen=True)
class AdapterProjector:
    """out(activation(mlp(x))), where the MLP, whose activation it is, yields `size` values.

    With a `norm` there is an RMS norm of the result, without weights.
    """

    mlp: FoldedMlpProjector
    size: int
    norm: Norm | None = None


@vision_slots.register
def _(projector: AdapterProjector, hidden_size: int) -> Iterator[Slot]:
    yield from vision_slots(projector.mlp, projector.size)
    yield Slot("projector.out", (hidden_size, projector.size))


@dataclass(frozen=True)
class CropsProjector:
    """Squares of 2 x 2 patches, a learned vector after each row and one before the whole; an MLP.

    The patches of a square are concatenated, or their mean is taken if it `is_mean`.
    """

    mlp: MlpProjector
    is_mean: bool = False


@vision_slots.register
def _(projector: CropsProjector, hidden_size: int) -> Iterator[Slot]:
    yield from vision_slots(projector.mlp, hidden_size)
    yield Slot("newline", (projector.mlp.input_size,), "vector", suffix="")
    yield Slot("between", (projector.mlp.input_size,), "vector", suffix="")
