"""Llama 3.2 Vision: images in up to four tiles, which cross-attention layers attend to."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.layouts.fitted_tiles import read_tiles
from mrs.architecture.vision.shared_projectors import LinearProjector
from mrs.architecture.vision.towers.mllama_tower import (
    MLLAMA_DEFAULTS,
    MLLAMA_NAMES,
    TOWER,
    read_tower,
)
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_IMAGES
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision

TOKEN = "<|image|>"
#: The names that newer versions of transformers write.
SPELLINGS = {
    TOWER: "model.vision_model.",
    "multi_modal_projector": "model.multi_modal_projector",
    "language_model.model.": "model.language_model.",
    "language_model.lm_head": "lm_head",
}


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_tower(configs.tower)
    return Vision(
        tower,
        LinearProjector(tower.output_size),
        read_tiles(configs.images, tower, TOKEN),
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_index", 128_256),
        enters="cross_attention",
    )


FAMILY = VisionFamily(
    "mllama",
    read,
    aliases=("vllama",),
    names={**MLLAMA_NAMES, "projector": "multi_modal_projector"},
    text="mllama_text_model",
    tower_defaults=MLLAMA_DEFAULTS,
    image_defaults={
        **SIGLIP_IMAGES,
        "size": {"height": 224, "width": 224},
        "resample": 2,
        "max_image_tiles": 4,
    },
    spellings=SPELLINGS,
)
