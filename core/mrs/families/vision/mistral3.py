"""Mistral Small 3.1 and later: Pixtral's tower (arXiv 2410.07073), images of any aspect ratio."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import CLIP_IMAGES
from mrs.architecture.vision.layouts.longest_edge import TOKEN, read_longest_edge
from mrs.architecture.vision.towers.clip_tower import read_layers
from mrs.architecture.vision.towers.pixtral_projector import PIXTRAL
from mrs.architecture.vision.towers.pixtral_tower import (
    PIXTRAL_DEFAULTS,
    PIXTRAL_NAMES,
    TOWER,
    MergingProjector,
    read_pixtral,
)
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    merged = model.positive("spatial_merge_size", 2)
    tower = read_pixtral(configs.tower, read_layers(model, default=-1))
    layout = read_longest_edge(images, tower.patches.size, merged)
    assert text.norm is not None
    projector = MergingProjector(
        tower.hidden_size,
        merged,
        text.norm,
        model.activation("gelu", "projector_hidden_act"),
        model.flag("multimodal_projector_bias", False),
    )
    return Vision(
        tower,
        projector,
        layout,
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_index", 10),
    )


FAMILY = VisionFamily(
    "mistral3",
    read,
    names={
        **PIXTRAL_NAMES,
        "projector.norm": "multi_modal_projector.norm",
        "projector.merge": "multi_modal_projector.patch_merger.merging_layer",
        "projector.up": "multi_modal_projector.linear_1",
        "projector.down": "multi_modal_projector.linear_2",
    },
    text="mistral",
    tower_defaults=PIXTRAL_DEFAULTS,
    image_defaults={**CLIP_IMAGES, "size": {"longest_edge": 1024}},
    ignored=(f"{TOWER}transformer.layers.", f"{TOWER}patch_positional_embedding."),
    gguf=PIXTRAL,
)
