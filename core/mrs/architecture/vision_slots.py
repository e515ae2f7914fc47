"""List every part of a tower and a projector that has weights, with their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

from mrs.architecture.layers import Norm
from mrs.architecture.slots import Slot
from mrs.architecture.vision_spec import Patches


def patch_slot(patches: Patches, hidden_size: int) -> Slot:
    frames = (patches.frames,) if patches.frames > 1 else ()
    shape = (hidden_size, patches.channels, *frames, patches.size, patches.size)
    return Slot("patches", shape, "dense", patches.bias)


def norm_slot(name: str, size: int, norm: Norm) -> Slot:
    return Slot(name, (size,), "vector", norm.bias)


@singledispatch
def vision_slots(part: object, hidden_size: int) -> Iterator[Slot]:
    """The slots of a tower, those of its layers left out, or of a projector; one case a kind.

    `hidden_size` is the language model's.
    """
    raise TypeError(f"no slots are known for {type(part).__name__}")
