"""SigLIP 2's vision tower for images of any size (NaFlex), and SigLIP's for them (NaViT)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt
from typing import Literal

from mrs.architecture.vision.towers.clip_tower import read_encoder_layer
from mrs.architecture.vision.towers.siglip_tower import read_siglip
from mrs.architecture.vision_slots import flat_patch_slot, vision_slots
from mrs.architecture.vision_spec import Tower
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class WindowMerger:
    """Makes one patch of each square of 2 x 2, after the layer with the index `after`.

    x + attention(norm(x)) within a square; then its mean + mlp(norm(its concatenation)).
    """

    after: int
    layer: Layer

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        layer = self.layer
        assert isinstance(layer.mixer, Attention)
        assert isinstance(layer.feed_forward, Mlp)
        inner = layer.feed_forward.intermediate
        for slot in layer.mixer.slots(hidden_size):
            yield replace(slot, name=f"merger.{slot.name}")
        yield from norm_slots("merger.mixer.norm", hidden_size, layer.norm)
        yield from norm_slots("merger.norm", 4 * hidden_size, layer.norm)
        yield Slot("merger.up", (inner, 4 * hidden_size), bias=True)
        yield Slot("merger.down", (hidden_size, inner), bias=True)


@dataclass(frozen=True)
class Siglip2Tower(Tower):
    """SigLIP's vision transformer on patches (arXiv 2502.14786), for each view of an image singly.

    Its input are the pixels of each patch. A table of `position_side` x `position_side` learned
    embeddings is interpolated to the size of the view, or a patch has the `nearest` of them
    (arXiv 2307.06304), whose number is rounded from a `product` with the step between patches or
    a `quotient`. The pixels of a patch are ordered by row, or by channel in convolutions.
    """

    hidden_size: int
    patch_size: int
    layers: tuple[Layer, ...]
    norm: Norm
    position_side: int
    channels_first: bool = False
    nearest: Literal["product", "quotient"] | None = None
    merger: WindowMerger | None = None

    @property
    def interpolated_values(self) -> int:
        return 0 if self.nearest else self.position_side**2 * self.hidden_size


@vision_slots.register
def _(tower: Siglip2Tower, hidden_size: int) -> Iterator[Slot]:
    first = tower.channels_first
    yield flat_patch_slot(tower.patch_size, tower.hidden_size, channels_first=first, bias=True)
    yield Slot("positions", (tower.position_side**2, tower.hidden_size), "dense")
    yield from norm_slots("post_norm", tower.hidden_size, tower.norm)
    if tower.merger is not None:
        yield from tower.merger.slots(tower.hidden_size)


def read_siglip2(tower: Config) -> Siglip2Tower:
    tower.allow_only("num_channels", 3)
    layer = read_encoder_layer(tower)
    return Siglip2Tower(
        tower.positive("hidden_size"),
        tower.positive("patch_size"),
        (layer,) * layer_count(tower),
        layer.norm,
        isqrt(tower.positive("num_patches", 256)),
    )


def read_nearest_siglip(tower: Config) -> Siglip2Tower:
    """SigLIP's tower, whose images may have any size."""
    siglip = read_siglip(tower)
    tower.allow_only("num_channels", 3)
    return Siglip2Tower(
        siglip.hidden_size,
        siglip.patches.size,
        siglip.layers,
        siglip.norm,
        siglip.side,
        channels_first=True,
        nearest="product",
    )
