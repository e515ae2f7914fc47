"""LLaVA-NeXT (1.6): the whole image, and tiles of it at a higher resolution."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import (
    CLIP_IMAGES,
    read_resampling,
    read_scale,
    read_size,
)
from mrs.architecture.vision.layouts.any_resolution import AnyResolutionLayout, read_resolutions
from mrs.architecture.vision.shared_projectors import MlpProjector, TilesProjector
from mrs.architecture.vision.towers.clip_tower import (
    CLIP_DEFAULTS,
    clip_ignored,
    clip_names,
    read_clip,
    read_layers,
)
from mrs.architecture.vision.towers.llava_projector import LLAVA_NEXT
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.families.vision.llava import SPELLINGS, TOWER


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    model.allow_only("vision_feature_select_strategy", "default")
    tower = read_clip(configs.tower, read_layers(model))
    layout = AnyResolutionLayout(
        edge=read_size(images, "crop_size", "height")[0],
        patch_size=tower.patches.size,
        resolutions=read_resolutions(images if images.has("image_grid_pinpoints") else model),
        scale=read_scale(images),
        resampling=read_resampling(images),
        token="<image>",
    )
    mlp = MlpProjector(
        tower.output_size,
        model.activation("gelu", "projector_hidden_act"),
        model.flag("multimodal_projector_bias", True),
    )
    return Vision(
        tower,
        TilesProjector(mlp),
        layout,
        placeholder="<image>",
        image_token_id=model.integer("image_token_index", 32_000),
    )


FAMILY = VisionFamily(
    "llava_next",
    read,
    names={
        **clip_names(TOWER),
        "projector.up": "multi_modal_projector.linear_1",
        "projector.down": "multi_modal_projector.linear_2",
        "newline": "image_newline",
    },
    defaults={
        "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    },
    tower_defaults=CLIP_DEFAULTS,
    image_defaults={**CLIP_IMAGES, "size": {"shortest_edge": 336}, "crop_size": {"height": 336}},
    spellings=SPELLINGS,
    ignored=clip_ignored("vision_tower."),
    gguf=LLAVA_NEXT,
)
