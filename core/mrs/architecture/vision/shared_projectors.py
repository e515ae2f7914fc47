"""Projectors that several families share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.mixers.mlp_spec import Activation
from mrs.architecture.slots import Slot
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
