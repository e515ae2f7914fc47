"""The projector of the Qwen-VL families, which merges squares of patches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.vision_slots import vision_slots
from mrs.config.activations import Activation
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class PatchMerger:
    """down(activation(up(x))), where x concatenates `merge` x `merge` patches after a norm of each.

    The MLP is `inner` wide, or as wide as x. There are `deep` further ones for features of other
    layers, which norm the concatenation.
    """

    input_size: int
    merge: int
    norm: Norm
    deep: int = 0
    inner: int | None = None
    activation: Activation = "gelu"
    bias: bool = True


@vision_slots.register
def _(projector: PatchMerger, hidden_size: int) -> Iterator[Slot]:
    merged = projector.input_size * projector.merge**2
    inner = projector.inner or merged
    sizes = {"projector": projector.input_size}
    sizes |= {f"projector.deep.{index}": merged for index in range(projector.deep)}
    for prefix, size in sizes.items():
        yield from norm_slots(f"{prefix}.norm", size, projector.norm)
        yield Slot(f"{prefix}.up", (inner, merged), bias=projector.bias)
        yield Slot(f"{prefix}.down", (hidden_size, inner), bias=projector.bias)
