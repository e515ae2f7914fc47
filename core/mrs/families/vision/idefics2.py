"""Idefics 2: images of nearly their own size, which become a few rows each (arXiv 2405.02246)."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.layouts.quarters import EDGE, TOKEN, read_quarters
from mrs.architecture.vision.perceiver_projector import (
    PERCEIVER_DEFAULTS,
    connector_names,
    read_perceiver,
)
from mrs.architecture.vision.towers.siglip2_tower import read_nearest_siglip
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_DEFAULTS, SIGLIP_IMAGES, siglip_names
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, tower = configs.model, read_nearest_siglip(configs.tower)
    perceiver = Config({**PERCEIVER_DEFAULTS, **model.mapping("perceiver_config")}, model.where)
    mlp = text.layers[0].feed_forward
    assert isinstance(mlp, Mlp)
    assert text.norm is not None
    projector = read_perceiver(
        perceiver, tower.hidden_size, replace(mlp, bias=False), text.hidden_size, text.norm
    )
    return Vision(
        tower,
        projector,
        read_quarters(configs.images, tower.patch_size, projector.rows),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 32_001),
        edge=EDGE,
    )


FAMILY = VisionFamily(
    "idefics2",
    read,
    names={
        **siglip_names("model.vision_model."),
        **connector_names("model.connector."),
    },
    text="mistral",
    text_start="model.text_model.",
    head="lm_head",
    tower_defaults={**SIGLIP_DEFAULTS, "patch_size": 32},
    image_defaults={
        **SIGLIP_IMAGES,
        "size": {"shortest_edge": 378, "longest_edge": 980},
        "resample": 2,
    },
)
