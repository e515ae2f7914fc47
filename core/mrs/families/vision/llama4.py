"""Llama 4: large images in tiles, and then also as a whole."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.layouts.padded_tiles import WHOLE, read_padded_tiles
from mrs.architecture.vision.towers.llama4_projector import LLAMA4
from mrs.architecture.vision.towers.llama4_tower import (
    LLAMA4_DEFAULTS,
    LLAMA4_NAMES,
    read_adapter,
    read_llama4_tower,
)
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_IMAGES
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_llama4_tower(configs.tower)
    projector = read_adapter(configs.tower, tower)
    return Vision(
        tower,
        projector,
        read_padded_tiles(configs.images, tower, (tower.side // projector.mlp.fold) ** 2),
        placeholder=WHOLE,
        image_token_id=configs.model.integer("image_token_index", 200_092),
    )


FAMILY = VisionFamily(
    "llama4",
    read,
    names=LLAMA4_NAMES,
    text="llama4_text",
    tower_defaults=LLAMA4_DEFAULTS,
    image_defaults={**SIGLIP_IMAGES, "size": {"height": 336, "width": 336}, "resample": 2},
    gguf=LLAMA4,
)
