"""Muse Glimmer: images nearly of their own size, and an adapter with a norm."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.layouts.nearest_grid import read_nearest_grid
from mrs.architecture.vision.shared_projectors import AdapterProjector, FoldedMlpProjector
from mrs.architecture.vision.towers.muse_projector import MUSE_GLIMMER
from mrs.architecture.vision.towers.muse_tower import (
    MUSE_DEFAULTS,
    MUSE_NAMES,
    TOKEN,
    read_muse_tower,
)
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_IMAGES
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, tower = configs.model, read_muse_tower(configs.tower)
    merge, inner = configs.tower.positive("merge_size"), model.positive("projector_hidden_size")
    model.allow_only("out_hidden_size", tower.hidden_size * merge**2)
    activation = model.activation("gelu", "projector_hidden_act")
    mlp = FoldedMlpProjector(
        tower.hidden_size, merge, activation, None, inner, bias=False, channels_first=True
    )
    patches = tower.patches
    return Vision(
        tower,
        AdapterProjector(mlp, inner, text.norm),
        read_nearest_grid(configs.images, patches.size, merge, patches.frames),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id"),
    )


FAMILY = VisionFamily(
    "muse_glimmer",
    read,
    names={
        **MUSE_NAMES,
        "projector.up": "model.vision_adapter.fc1",
        "projector.down": "model.vision_adapter.fc2",
        "projector.out": "model.vision_projection",
    },
    text="muse_glimmer_text",
    text_start="model.language_model.",
    head="lm_head",
    defaults={
        "image_token_id": 200_092,
        "out_hidden_size": 6144,
        "projector_hidden_size": 4096,
    },
    tower_defaults=MUSE_DEFAULTS,
    image_defaults={**SIGLIP_IMAGES, "resample": 1, "max_image_tokens": 4096},
    gguf=MUSE_GLIMMER,
)
