"""The perceiver of Idefics 2, which makes a few rows of any number of patches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp, mlp_slots
from mrs.architecture.norm_rope import Norm
from mrs.architecture.slots import Slot, norm_slots
from mrs.architecture.vision_slots import vision_slots


@dataclass(frozen=True)
class PerceiverProjector:
    """An MLP maps patches to the hidden size; then `rows` learned vectors attend to them.

    Each of `layers` layers is x + attention(norm(x), [norm(patches), norm(x)]) for the vectors x,
    then x + mlp(norm(x)); a norm follows. Each of an image's `views` has its own rows.
    """

    input_size: int
    widen: Mlp
    rows: int
    layers: int
    attention: Attention
    mlp: Mlp
    norm: Norm


@vision_slots.register
def _(projector: PerceiverProjector, hidden_size: int) -> Iterator[Slot]:
    for slot in mlp_slots("projector", projector.widen, projector.input_size):
        if slot.name == "projector.down":
            slot = replace(slot, shape=(hidden_size, projector.widen.intermediate))
        yield slot
    yield Slot("latents", (projector.rows, hidden_size), "dense", suffix="")
    attention = [
        replace(slot, name=slot.name.removeprefix("mixer."))
        for slot in projector.attention.slots(hidden_size)
    ]
    for index in range(projector.layers):
        prefix = f"perceiver.{index}"
        for slot in attention:
            yield replace(slot, name=f"{prefix}.{slot.name}")
        for name in ("norm", "context_norm", "ffn.norm"):
            yield from norm_slots(f"{prefix}.{name}", hidden_size, projector.norm)
        yield from mlp_slots(f"{prefix}.ffn", projector.mlp, hidden_size)
    yield from norm_slots("perceiver.norm", hidden_size, projector.norm)
