"""Gemma 4 12B: squares of pixels are projected to rows, without a tower."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import read_norm
from mrs.architecture.vision.gemma4_vision import gemma4_family, gemma4_vision
from mrs.architecture.vision.layouts.area import read_area, read_normalization, require_positions
from mrs.architecture.vision.towers.gemma4_projector import GEMMA4_UNIFIED
from mrs.architecture.vision.towers.gemma4_tower import ScaledPoolProjector
from mrs.architecture.vision.towers.squares_tower import (
    EMBEDDER,
    SQUARES_DEFAULTS,
    SQUARES_NAMES,
    SquaresTower,
)
from mrs.architecture.vision.vision_family import VisionConfigs
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config = configs.tower
    layout = replace(read_area(configs, *read_normalization(configs.images)), pool=1)
    tower = SquaresTower(
        config.positive("mm_embed_dim"), layout.square, config.positive("mm_posemb_size")
    )
    require_positions(layout.most_rows, tower.positions, config.where)
    projector = ScaledPoolProjector(tower.hidden_size, read_norm(config))
    return gemma4_vision(configs, tower, projector, layout, attention="vision")


PROJECTION = "model.embed_vision.embedding_projection"
FAMILY = gemma4_family(
    "gemma4_unified",
    read,
    SQUARES_NAMES,
    text="gemma4_unified_text",
    tower_defaults=SQUARES_DEFAULTS,
    # The names in transformers' own classes.
    spellings={
        EMBEDDER: "model.embed_vision.",
        PROJECTION: "model.embed_vision.multimodal_embedder.embedding_projection",
    },
    gguf=GEMMA4_UNIFIED,
)
