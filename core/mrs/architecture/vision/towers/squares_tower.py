"""What Gemma 4 12B has in place of a vision tower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.layers import Layer
from mrs.architecture.norm_rope import Norm
from mrs.architecture.slots import Slot, norm_slots
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import Tower

EMBEDDER = "model.vision_embedder."
#: Slot -> module name.
SQUARES_NAMES = {
    "pre_norm": f"{EMBEDDER}patch_ln1",
    "patches": f"{EMBEDDER}patch_dense",
    "norm": f"{EMBEDDER}patch_ln2",
    "positions": f"{EMBEDDER}pos_embedding",
    "post_norm": f"{EMBEDDER}pos_norm",
    "layer": "",
}
#: Defaults of transformers.
SQUARES_DEFAULTS = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 3840,
    "mm_posemb_size": 1120,
}
#: The norms, whose epsilon configs do not have.
NORM = Norm(1e-5, "layer", bias=True)


@dataclass(frozen=True)
class SquaresTower(Tower):
    """norm(norm(linear(norm(pixels))) + positions) of each square of `square` x `square` pixels.

    A column and a row have a learned embedding each, of which there are `positions`. In mmproj
    files the pixels of a square are ordered by channel, and all columns precede all rows.
    """

    hidden_size: int
    square: int
    positions: int
    layers: tuple[Layer, ...] = ()
    channels_first: bool = False


@vision_slots.register
def _(tower: SquaresTower, hidden_size: int) -> Iterator[Slot]:
    pixels, hidden = 3 * tower.square**2, tower.hidden_size
    yield from norm_slots("pre_norm", pixels, NORM)
    yield Slot("patches", (hidden, pixels), "dense", bias=True)
    yield from norm_slots("norm", hidden, NORM)
    axes = (2, tower.positions) if tower.channels_first else (tower.positions, 2)
    yield Slot("positions", (*axes, hidden), "dense", suffix="")
    yield from norm_slots("post_norm", hidden, NORM)
