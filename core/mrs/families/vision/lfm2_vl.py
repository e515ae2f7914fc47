"""LFM2-VL: images of nearly their own size; large ones in tiles, and then also as a whole."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.vision.layouts.whole_and_tiles import TOKEN, read_whole_and_tiles
from mrs.architecture.vision.shared_projectors import FoldedMlpProjector
from mrs.architecture.vision.towers.lfm2_projector import LFM2
from mrs.architecture.vision.towers.siglip2_tower import read_siglip2
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_DEFAULTS, SIGLIP_IMAGES, siglip_names
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision

TOWER = "model.vision_tower.vision_model."


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model = configs.model
    tower, fold = read_siglip2(configs.tower), model.positive("downsample_factor", 2)
    projector = FoldedMlpProjector(
        tower.hidden_size,
        fold,
        model.activation("gelu", "projector_hidden_act"),
        Norm(1e-5, "layer", bias=True) if model.flag("projector_use_layernorm", True) else None,
        model.positive("projector_hidden_size", 2560),
        model.flag("projector_bias", True),
    )
    return Vision(
        tower,
        projector,
        read_whole_and_tiles(configs.images, tower.patch_size, fold),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 396),
    )


FAMILY = VisionFamily(
    "lfm2_vl",
    read,
    names={
        **siglip_names(TOWER),
        "projector.norm": "model.multi_modal_projector.layer_norm",
        "projector.up": "model.multi_modal_projector.linear_1",
        "projector.down": "model.multi_modal_projector.linear_2",
    },
    text="lfm2",
    text_start="model.language_model.",
    head="lm_head",
    tower_defaults=SIGLIP_DEFAULTS,
    image_defaults={**SIGLIP_IMAGES, "resample": 2},
    spellings={TOWER: "model.vision_tower."},
    ignored=(f"{TOWER}head.", "model.vision_tower.head."),
    gguf=LFM2,
)
