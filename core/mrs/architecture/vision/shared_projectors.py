"""Projectors that several families share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.mixers.mlp_spec import Activation
from mrs.architecture.norm_rope import Norm
from mrs.architecture.slots import Slot, norm_slot
from mrs.architecture.vision_slots import vision_slots


@dataclass(frozen=True)
class MlpProjector:
    """down(activation(up(x))), from `input_size` values of the tower to the hidden size."""

    input_size: int
    activation: Activation = "gelu"
    bias: bool = True


@vision_slots.register
def _(projector: MlpProjector, hidden_size: int) -> Iterator[Slot]:
    yield Slot("projector.up", (hidden_size, projector.input_size), bias=projector.bias)
    yield Slot("projector.down", (hidden_size, hidden_size), bias=projector.bias)


@dataclass(frozen=True)
class LinearProjector:
    """One linear map from `input_size` values of the tower to the hidden size."""

    input_size: int
    bias: bool = True


@vision_slots.register
def _(projector: LinearProjector, hidden_size: int) -> Iterator[Slot]:
    yield Slot("projector", (hidden_size, projector.input_size), bias=projector.bias)


@dataclass(frozen=True)
class FoldedMlpProjector:
    """down(activation(up(norm(x)))), where x concatenates `fold` x `fold` patches (pixel shuffle).

    The MLP is `inner` wide, or as wide as the language model. There may be no norm. Each of an
    image's `views` is folded on its own.
    """

    input_size: int
    fold: int
    activation: Activation
    norm: Norm | None
    inner: int | None = None
    bias: bool = True


@vision_slots.register
def _(projector: FoldedMlpProjector, hidden_size: int) -> Iterator[Slot]:
    folded, inner = projector.input_size * projector.fold**2, projector.inner or hidden_size
    if projector.norm is not None:
        yield norm_slot("projector.norm", folded, projector.norm)
    yield Slot("projector.up", (inner, folded), bias=projector.bias)
    yield Slot("projector.down", (hidden_size, inner), bias=projector.bias)
