"""SigLIP 2's vision tower for images of any size (NaFlex)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.slots import Slot, norm_slots
from mrs.architecture.vision.towers.clip_tower import read_encoder_layer
from mrs.architecture.vision_slots import flat_patch_slot, vision_slots
from mrs.architecture.vision_spec import Tower


@dataclass(frozen=True)
class Siglip2Tower(Tower):
    """SigLIP's vision transformer on patches (arXiv 2502.14786), for each view of an image singly.

    Its input are the pixels of each patch. A table of `position_side` x `position_side` learned
    embeddings is interpolated to the size of the view. The pixels of a patch are ordered by row,
    or by channel in the map of mmproj files.
    """

    hidden_size: int
    patch_size: int
    layers: tuple[Layer, ...]
    norm: Norm
    position_side: int
    channels_first: bool = False

    @property
    def interpolated_values(self) -> int:
        return self.position_side**2 * self.hidden_size


@vision_slots.register
def _(tower: Siglip2Tower, hidden_size: int) -> Iterator[Slot]:
    first = tower.channels_first
    yield flat_patch_slot(tower.patch_size, tower.hidden_size, channels_first=first, bias=True)
    yield Slot("positions", (tower.position_side**2, tower.hidden_size), "dense")
    yield from norm_slots("post_norm", tower.hidden_size, tower.norm)


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
