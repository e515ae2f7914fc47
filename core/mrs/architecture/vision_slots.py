"""List the weights of vision towers and projectors as slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import singledispatch
from math import prod

from mrs.architecture.vision_spec import Patches
from mrs.layers.slots import Slot


def patch_slot(patches: Patches, hidden_size: int) -> Slot:
    frames = (patches.frames,) if patches.frames > 1 and not patches.apart else ()
    inside = (patches.channels, *frames, patches.size, patches.size)
    shape = (hidden_size, prod(inside)) if patches.flat else (hidden_size, *inside)
    return Slot("patches", shape, "dense", patches.bias)


def flat_patch_slot(
    size: int, hidden_size: int, *, channels_first: bool, bias: bool = False
) -> Slot:
    """The map of the pixels of a patch: their channels come last, or first as in convolutions."""
    pixels = (3, size, size) if channels_first else (3 * size**2,)
    return Slot("patches", (hidden_size, *pixels), "dense", bias)


def later_frames(patches: Patches, hidden_size: int) -> list[Slot]:
    """The matrices of frames after the first, if they are apart."""
    first = replace(patch_slot(patches, hidden_size), bias=False)
    frames = range(1, patches.frames if patches.apart else 1)
    return [replace(first, name=f"patches.{frame}") for frame in frames]


@singledispatch
def vision_slots(module: object, hidden_size: int) -> Iterator[Slot]:
    """The slots of a projector, or of a tower without its layers (`Layer.slots` lists those).

    `hidden_size` is that of the language model.
    """
    raise TypeError(f"no slots are known for {type(module).__name__}")
