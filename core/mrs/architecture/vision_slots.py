"""List the weights of vision towers and projectors as slots."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

from mrs.architecture.slots import Slot
from mrs.architecture.vision_spec import Patches


def patch_slot(patches: Patches, hidden_size: int) -> Slot:
    frames = (patches.frames,) if patches.frames > 1 else ()
    shape = (hidden_size, patches.channels, *frames, patches.size, patches.size)
    return Slot("patches", shape, "dense", patches.bias)


@singledispatch
def vision_slots(module: object, hidden_size: int) -> Iterator[Slot]:
    """The slots of a projector, or of a tower without its layers (`Layer.slots` lists those).

    `hidden_size` is that of the language model.
    """
    raise TypeError(f"no slots are known for {type(module).__name__}")
