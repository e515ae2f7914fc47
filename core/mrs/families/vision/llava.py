"""LLaVA 1.5: CLIP features, through a two-layer MLP, in place of embeddings."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import (
    CropLayout,
    read_resampling,
    read_scale,
    read_size,
)
from mrs.architecture.vision.llava_vision import (
    TOKEN,
    llava_family,
    llava_vision,
    read_crop,
    read_mlp,
)
from mrs.architecture.vision.towers.clip_tower import read_clip, read_layers
from mrs.architecture.vision.towers.llava_projector import LLAVA
from mrs.architecture.vision.vision_family import VisionConfigs
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    model.allow_only("vision_feature_select_strategy", "default", "full")
    keeps_class = model.values.get("vision_feature_select_strategy") == "full"
    tower = read_clip(configs.tower, read_layers(model), keeps_class=keeps_class)
    layout = CropLayout(
        edge=read_size(images, "size", "shortest_edge")[0],
        crop=read_crop(configs, tower),
        patch_size=tower.patches.size,
        scale=read_scale(images),
        resampling=read_resampling(images),
        token=TOKEN,
        extra_rows=int(keeps_class),
    )
    return llava_vision(configs, tower, read_mlp(model, tower), layout)


FAMILY = llava_family("llava", read, {}, gguf=LLAVA)
