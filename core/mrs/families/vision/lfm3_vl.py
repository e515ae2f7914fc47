"""LFM3-VL: images and videos of nearly their own size, encoded by convolutions and attention."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.vision.dynamic_layout import read_dynamic
from mrs.architecture.vision.patch_merger import PatchMerger
from mrs.architecture.vision.towers.lfm3_tower import (
    LFM3_TOWER_DEFAULTS,
    LFM3_TOWER_NAMES,
    read_lfm3_tower,
)
from mrs.architecture.vision.towers.qwen3_tower import VIDEO_DEFAULTS
from mrs.architecture.vision.towers.qwen_tower import IMAGE_DEFAULTS, TOKEN
from mrs.architecture.vision.video_reader import read_stamped
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, tower = configs.model, read_lfm3_tower(configs.tower)
    merge, token = configs.tower.positive("spatial_merge_size"), model.integer("video_token_id")
    layout = read_dynamic(configs.images, tower.patches.size, merge, TOKEN)
    projector = PatchMerger(
        tower.hidden_size,
        merge,
        Norm(1e-6, "layer", bias=True),
        inner=model.positive("projector_hidden_size"),
        activation=model.activation("gelu", "projector_hidden_act"),
        bias=model.flag("projector_bias", True),
    )
    video = read_stamped(configs.videos, layout, tower.patches.frames, token)
    image_token = model.integer("image_token_id")
    return Vision(tower, projector, layout, TOKEN, image_token, video=video)


DEFAULTS = {"image_token_id": 125_030, "video_token_id": 125_029, "projector_hidden_size": 4096}
PROJECTOR = "model.multi_modal_projector."
FAMILY = VisionFamily(
    "lfm3_vl",
    read,
    names={
        **LFM3_TOWER_NAMES,
        "projector.norm": f"{PROJECTOR}layer_norm",
        "projector.up": f"{PROJECTOR}linear_1",
        "projector.down": f"{PROJECTOR}linear_2",
    },
    text="lfm3",
    text_start="model.language_model.",
    head="lm_head",
    defaults=DEFAULTS,
    tower_defaults=LFM3_TOWER_DEFAULTS,
    image_defaults=IMAGE_DEFAULTS,
    video_defaults=VIDEO_DEFAULTS,
)
