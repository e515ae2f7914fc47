"""The projector of the Qwen-VL families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.norm_rope import Norm
from mrs.architecture.slots import Slot, norm_slots
from mrs.architecture.vision_slots import vision_slots


@dataclass(frozen=True)
class PatchMerger:
    """down(gelu(up(x))), where x concatenates `merge` x `merge` patches after a norm of each.

    There are `deep` further ones for features of other layers, which norm the concatenation.
    """

    input_size: int
    merge: int
    norm: Norm
    deep: int = 0


@vision_slots.register
def _(projector: PatchMerger, hidden_size: int) -> Iterator[Slot]:
    merged = projector.input_size * projector.merge**2
    sizes = {"projector": projector.input_size}
    sizes |= {f"projector.deep.{index}": merged for index in range(projector.deep)}
    for prefix, size in sizes.items():
        yield from norm_slots(f"{prefix}.norm", size, projector.norm)
        yield Slot(f"{prefix}.up", (merged, merged), bias=True)
        yield Slot(f"{prefix}.down", (hidden_size, merged), bias=True)
