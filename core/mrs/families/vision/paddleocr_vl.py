"""PaddleOCR-VL: ERNIE 4.5 with the rope and nearly the images of Qwen2-VL."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.dynamic_layout import read_dynamic
from mrs.architecture.vision.image_layouts import CLIP_IMAGES
from mrs.architecture.vision.text_defaults import PADDLEOCR_TEXT
from mrs.architecture.vision.towers import paddleocr_tower as own
from mrs.architecture.vision.towers.qwen_tower import require_sections
from mrs.architecture.vision.towers.siglip_tower import siglip_names
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision

SPELLINGS = {own.TOWER: "visual.", "model.projector.": "mlp_AR.", "model.language_model.": "model."}


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    require_sections(text, model.where)
    images.allow_only("temporal_patch_size", 1)
    tower = own.read_paddleocr_tower(configs.tower)
    merge = configs.tower.positive("spatial_merge_size")
    return Vision(
        tower,
        own.read_merger(tower, merge),
        replace(read_dynamic(images, tower.patches.size, merge, own.TOKEN), grown="in_turn"),
        placeholder=own.TOKEN,
        image_token_id=model.integer("image_token_id", 100_295),
        positions="multimodal",
    )


FAMILY = VisionFamily(
    "paddleocr_vl",
    read,
    names={
        **siglip_names(f"{own.TOWER}vision_model."),
        "projector.norm": "model.projector.pre_norm",
        "projector.up": "model.projector.linear_1",
        "projector.down": "model.projector.linear_2",
    },
    text="ernie4_5",
    text_types={"paddleocr_vl": "ernie4_5", "paddleocr_vl_text": "ernie4_5"},
    text_start="model.language_model.",
    head="lm_head",
    text_defaults=PADDLEOCR_TEXT,
    tower_defaults=own.PADDLEOCR_DEFAULTS,
    image_defaults={
        **CLIP_IMAGES,
        "size": {"shortest_edge": own.LEAST_PIXELS, "longest_edge": own.MOST_PIXELS},
    },
    spellings=SPELLINGS,
    ignored=own.IGNORED,
    gguf=own.PADDLEOCR,
)
