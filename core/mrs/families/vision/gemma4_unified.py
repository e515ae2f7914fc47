"""Gemma 4 12B: squares of pixels are projected to rows, without a tower."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import read_norm
from mrs.architecture.vision.layouts.area import (
    TOKEN,
    read_area,
    read_normalization,
    require_positions,
)
from mrs.architecture.vision.towers.gemma4_projector import GEMMA4_UNIFIED
from mrs.architecture.vision.towers.gemma4_tower import ScaledPoolProjector
from mrs.architecture.vision.towers.squares_tower import SquaresTower
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.families.vision.gemma4 import attends_both_ways


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config = configs.tower
    layout = replace(read_area(configs, *read_normalization(configs.images)), pool=1)
    tower = SquaresTower(
        config.positive("mm_embed_dim"), layout.square, config.positive("mm_posemb_size")
    )
    require_positions(layout.most_rows, tower.positions, config.where)
    return Vision(
        tower,
        ScaledPoolProjector(tower.hidden_size, read_norm(config)),
        layout,
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_id", 258_880),
        is_bidirectional=attends_both_ways(configs.model, default="vision"),
    )


EMBEDDER, PROJECTION = "model.vision_embedder.", "model.embed_vision.embedding_projection"
FAMILY = VisionFamily(
    "gemma4_unified",
    read,
    names={
        "pre_norm": f"{EMBEDDER}patch_ln1",
        "patches": f"{EMBEDDER}patch_dense",
        "norm": f"{EMBEDDER}patch_ln2",
        "positions": f"{EMBEDDER}pos_embedding",
        "post_norm": f"{EMBEDDER}pos_norm",
        "projector": PROJECTION,
        "layer": "",
    },
    text="gemma4_unified_text",
    text_start="model.language_model.",
    head="lm_head",
    tower_defaults={
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "mm_embed_dim": 3840,
        "mm_posemb_size": 1120,
    },
    image_defaults={"max_soft_tokens": 280, "resample": 3},
    # The names in transformers' own classes.
    spellings={
        EMBEDDER: "model.embed_vision.",
        PROJECTION: "model.embed_vision.multimodal_embedder.embedding_projection",
    },
    ignored=("model.embed_audio.",),
    gguf=GEMMA4_UNIFIED,
)
