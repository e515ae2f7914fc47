"""Llama 4: large images in tiles, and then also as a whole."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.layouts.padded_tiles import WHOLE, read_padded_tiles
from mrs.architecture.vision.shared_projectors import FoldedMlpProjector
from mrs.architecture.vision.towers.llama4_projector import LLAMA4
from mrs.architecture.vision.towers.llama4_tower import (
    LLAMA4_NAMES,
    AdapterProjector,
    read_llama4_tower,
)
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_IMAGES
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.errors import NotReadable


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config = configs.tower
    tower = read_llama4_tower(config)
    fold = round(1 / config.positive_number("pixel_shuffle_ratio"))
    inner, size = config.positive("projector_input_dim"), config.positive("projector_output_dim")
    widths = {inner, size, config.positive("vision_output_dim")}
    folded = tower.hidden_size * fold**2
    if (
        fold < 1
        or tower.side % fold
        or len(widths) > 1
        or config.positive("intermediate_size") != folded
    ):
        raise NotReadable("the sizes of the projector do not fit the tower", where=config.where)
    mlp = FoldedMlpProjector(tower.hidden_size, fold, "gelu", None, inner, bias=False)
    return Vision(
        tower,
        AdapterProjector(mlp, size),
        read_padded_tiles(configs.images, tower, (tower.side // fold) ** 2),
        placeholder=WHOLE,
        image_token_id=configs.model.integer("image_token_index", 200_092),
    )


FAMILY = VisionFamily(
    "llama4",
    read,
    names=LLAMA4_NAMES,
    text="llama4_text",
    tower_defaults={
        "hidden_size": 768,
        "num_hidden_layers": 34,
        "num_attention_heads": 16,
        "num_channels": 3,
        "intermediate_size": 5632,
        "image_size": 448,
        "patch_size": 14,
        "vision_output_dim": 7680,
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
    },
    image_defaults={**SIGLIP_IMAGES, "size": {"height": 336, "width": 336}, "resample": 2},
    gguf=LLAMA4,
)
