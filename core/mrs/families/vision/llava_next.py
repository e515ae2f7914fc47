"""LLaVA-NeXT (1.6): the whole image, and tiles of it at a higher resolution."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import read_resampling, read_scale
from mrs.architecture.vision.layouts.any_resolution import AnyResolutionLayout, read_resolutions
from mrs.architecture.vision.llava_vision import (
    TOKEN,
    llava_family,
    llava_vision,
    read_crop,
    read_mlp,
)
from mrs.architecture.vision.shared_projectors import TilesProjector
from mrs.architecture.vision.towers.clip_tower import read_clip, read_layers
from mrs.architecture.vision.towers.llava_projector import LLAVA_NEXT
from mrs.architecture.vision.vision_family import VisionConfigs
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    model.allow_only("vision_feature_select_strategy", "default")
    tower = read_clip(configs.tower, read_layers(model))
    layout = AnyResolutionLayout(
        edge=read_crop(configs, tower),
        patch_size=tower.patches.size,
        resolutions=read_resolutions(images if images.has("image_grid_pinpoints") else model),
        scale=read_scale(images),
        resampling=read_resampling(images),
        token=TOKEN,
    )
    return llava_vision(configs, tower, TilesProjector(read_mlp(model, tower)), layout)


FAMILY = llava_family(
    "llava_next",
    read,
    {"newline": "image_newline"},
    defaults={
        "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    },
    gguf=LLAVA_NEXT,
)
