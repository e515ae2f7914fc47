"""LLaVA 1.5: CLIP features, through a two-layer MLP, in place of embeddings."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import (
    CLIP_IMAGES,
    CropLayout,
    read_resampling,
    read_scale,
    read_size,
)
from mrs.architecture.vision.shared_projectors import MlpProjector
from mrs.architecture.vision.towers.clip_tower import (
    CLIP_DEFAULTS,
    clip_ignored,
    clip_names,
    read_clip,
    read_layers,
)
from mrs.architecture.vision.towers.llava_projector import LLAVA
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision

TOWER = "vision_tower.vision_model."
#: The names that newer versions of transformers write.
SPELLINGS = {TOWER: "vision_tower."}


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    model.allow_only("vision_feature_select_strategy", "default", "full")
    keeps_class = model.values.get("vision_feature_select_strategy") == "full"
    tower = read_clip(configs.tower, read_layers(model), keeps_class=keeps_class)
    layout = CropLayout(
        edge=read_size(images, "size", "shortest_edge")[0],
        crop=read_size(images, "crop_size", "height")[0],
        patch_size=tower.patches.size,
        scale=read_scale(images),
        resampling=read_resampling(images),
        token="<image>",
        extra_rows=int(keeps_class),
    )
    return Vision(
        tower,
        MlpProjector(
            tower.output_size,
            model.activation("gelu", "projector_hidden_act"),
            model.flag("multimodal_projector_bias", True),
        ),
        layout,
        placeholder="<image>",
        image_token_id=model.integer("image_token_index", 32_000),
    )


FAMILY = VisionFamily(
    "llava",
    read,
    names={
        **clip_names(TOWER),
        "projector.up": "multi_modal_projector.linear_1",
        "projector.down": "multi_modal_projector.linear_2",
    },
    tower_defaults=CLIP_DEFAULTS,
    image_defaults={**CLIP_IMAGES, "size": {"shortest_edge": 336}, "crop_size": {"height": 336}},
    spellings=SPELLINGS,
    ignored=clip_ignored("vision_tower."),
    gguf=LLAVA,
)
