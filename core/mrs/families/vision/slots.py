"""List every part of a tower and a projector that has weights, with their shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import singledispatch

from mrs.families.slots import Slot
from mrs.families.spec import Layer, Norm
from mrs.families.vision.spec import ClipTower, MlpProjector, Patches, Tower


def patch_slot(patches: Patches, hidden_size: int) -> Slot:
    shape = (hidden_size, patches.channels, patches.size, patches.size)
    return Slot("patches", shape, "dense", patches.bias)


def norm_slot(name: str, size: int, norm: Norm) -> Slot:
    return Slot(name, (size,), "vector", norm.bias)


@singledispatch
def vision_slots(part: object, hidden_size: int) -> Iterator[Slot]:
    """The slots of a tower, those of its layers left out, or of a projector; one case a kind.

    `hidden_size` is the language model's.
    """
    raise TypeError(f"no slots are known for {type(part).__name__}")


@vision_slots.register
def _(part: ClipTower, hidden_size: int) -> Iterator[Slot]:
    yield patch_slot(part.patches, part.hidden_size)
    yield Slot("class", (part.hidden_size,), "vector", suffix="")
    yield Slot("positions", (part.positions, part.hidden_size), "dense")
    yield norm_slot("pre_norm", part.hidden_size, part.norm)


@vision_slots.register
def _(part: MlpProjector, hidden_size: int) -> Iterator[Slot]:
    yield Slot("projector.up", (hidden_size, part.input_size), bias=part.bias)
    yield Slot("projector.down", (hidden_size, hidden_size), bias=part.bias)


def tower_layers(tower: Tower) -> Mapping[str, Sequence[Layer]]:
    """A tower's stacks of layers, by the slot that starts their parts' names."""
    return {"layer": tower.layers}
