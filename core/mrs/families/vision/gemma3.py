"""Gemma 3: SigLIP features, average-pooled; bidirectional attention within an image."""

from __future__ import annotations

from math import isqrt

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.vision.layouts.square import BEGIN, read_square
from mrs.architecture.vision.shared_projectors import PooledProjector
from mrs.architecture.vision.towers.gemma3_projector import GEMMA3
from mrs.architecture.vision.towers.siglip_tower import (
    SIGLIP_DEFAULTS,
    SIGLIP_IMAGES,
    read_siglip,
    siglip_names,
)
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision

TOWER = "vision_tower.vision_model."


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_siglip(configs.tower)
    layout = read_square(configs, tower)
    norm = Norm(configs.tower.number("layer_norm_eps"))
    pool = tower.side // isqrt(layout.rows)
    return Vision(
        tower,
        PooledProjector(tower.hidden_size, tower.side, pool, norm),
        layout,
        placeholder=BEGIN,
        image_token_id=configs.model.integer("image_token_index", 262_144),
        is_bidirectional=True,
    )


FAMILY = VisionFamily(
    "gemma3",
    read,
    names={
        **siglip_names(TOWER),
        "projector.norm": "multi_modal_projector.mm_soft_emb_norm",
        "projector.weight": "multi_modal_projector.mm_input_projection_weight^T",
    },
    text="gemma3_text",
    tower_defaults=SIGLIP_DEFAULTS,
    image_defaults={**SIGLIP_IMAGES, "size": {"height": 896, "width": 896}, "resample": 2},
    spellings={TOWER: "vision_tower."},
    ignored=("vision_tower.vision_model.head.", "vision_tower.head."),
    gguf=GEMMA3,
)
