"""InternVL: large images in tiles, and several patches for each row."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.vision.image_layouts import CLIP_IMAGES
from mrs.architecture.vision.layouts.canvas import TOKEN, read_canvas
from mrs.architecture.vision.shared_projectors import FoldedMlpProjector
from mrs.architecture.vision.towers.internvl_projector import INTERNVL
from mrs.architecture.vision.towers.internvl_tower import (
    INTERNVL_DEFAULTS,
    INTERNVL_NAMES,
    read_internvl_tower,
)
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.errors import NotReadable


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model = configs.model
    model.allow_only("vision_feature_select_strategy", "default")
    model.allow_only("vision_feature_layer", -1)
    fold = round(1 / model.positive_number("downsample_ratio", 0.5))
    tower = read_internvl_tower(configs.tower)
    if fold < 1 or tower.side % fold:
        raise NotReadable(
            f"{tower.side} patches along the edge of a tile do not fit downsample_ratio",
            where=model.where,
        )
    activation = model.activation("gelu", "projector_hidden_act")
    return Vision(
        tower,
        FoldedMlpProjector(tower.hidden_size, fold, activation, Norm(1e-5, "layer", bias=True)),
        read_canvas(configs.images, tower, (tower.side // fold) ** 2),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 151_667),
    )


FAMILY = VisionFamily(
    "internvl",
    read,
    names={
        **INTERNVL_NAMES,
        "projector.norm": "multi_modal_projector.layer_norm",
        "projector.up": "multi_modal_projector.linear_1",
        "projector.down": "multi_modal_projector.linear_2",
    },
    text="qwen2",
    tower_defaults=INTERNVL_DEFAULTS,
    image_defaults={**CLIP_IMAGES, "size": {"height": 384, "width": 384}},
    ignored=("vision_tower.embeddings.mask_token",),
    gguf=INTERNVL,
)
