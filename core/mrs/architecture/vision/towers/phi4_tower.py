"""The vision tower of Phi-4-multimodal: SigLIP's on crops, some of which are padded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.slots import Slot
from mrs.architecture.vision.towers.clip_tower import read_encoder_layer, read_layers
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import Patches, Tower
from mrs.errors import NotReadable


@dataclass(frozen=True)
class Phi4Tower(Tower):
    """SigLIP's vision transformer on crops of `image_size` pixels, without the norm at the end.

    Each view of an image has its own rows and columns of patches, which take the learned embedding
    at the same relative row and column; further patches are padding, which nothing attends to.
    """

    hidden_size: int
    image_size: int
    patches: Patches
    layers: tuple[Layer, ...]

    @property
    def side(self) -> int:
        return self.image_size // self.patches.size


@vision_slots.register
def _(tower: Phi4Tower, hidden_size: int) -> Iterator[Slot]:
    yield patch_slot(tower.patches, tower.hidden_size)
    yield Slot("positions", (tower.side**2, tower.hidden_size), "dense")


def read_phi4_tower(tower: Config) -> Phi4Tower:
    """The tower up to the layer `feature_layer`, where -1 is the last of the config."""
    image_size, patch_size = tower.positive("image_size"), tower.positive("patch_size")
    if image_size % (2 * patch_size):
        raise NotReadable(
            f"image_size = {image_size} is not a multiple of two patches of {patch_size} pixels",
            where=tower.where,
        )
    tower.allow_only("crop_size", image_size)
    count, chosen = layer_count(tower), read_layers(tower, key="feature_layer")
    used = sum(index + count + 1 if index < 0 else index for index in chosen)
    if len(chosen) != 1 or not 0 < used <= count:
        raise NotReadable(
            f"feature_layer = {list(chosen)} is out of range: the tower has {count} layers",
            where=tower.where,
        )
    return Phi4Tower(
        tower.positive("hidden_size"),
        image_size,
        Patches(patch_size, tower.positive("num_channels"), bias=True),
        (read_encoder_layer(tower),) * used,
    )
