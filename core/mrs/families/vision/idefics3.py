"""Idefics 3 and SmolVLM: larger images in tiles, and several SigLIP patches per row."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.layouts.split import TOKEN, read_split
from mrs.architecture.vision.shared_projectors import FoldedProjector
from mrs.architecture.vision.towers.idefics3_projector import IDEFICS3
from mrs.architecture.vision.towers.siglip_tower import (
    SIGLIP_DEFAULTS,
    SIGLIP_IMAGES,
    read_siglip,
    siglip_names,
)
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_siglip(configs.tower, fractional_positions=True)
    fold = configs.model.positive("scale_factor", 2)
    layout = read_split(configs.images, tower.patches.size, fold)
    return Vision(
        tower,
        FoldedProjector(tower.hidden_size, layout.tile // layout.patch_size, fold),
        layout,
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_id", 128_257),
    )


FAMILY = VisionFamily(
    "idefics3",
    read,
    names={
        **siglip_names("model.vision_model."),
        "projector": "model.connector.modality_projection.proj",
    },
    text_start="model.text_model.",
    head="lm_head",
    aliases=("smolvlm",),
    tower_defaults={
        **SIGLIP_DEFAULTS,
        "hidden_size": 1152,
        "num_attention_heads": 16,
        "patch_size": 32,
    },
    image_defaults={
        **SIGLIP_IMAGES,
        "size": {"longest_edge": 1456},
        "max_image_size": {"longest_edge": 364},
        "resample": 1,
    },
    gguf=IDEFICS3,
)
