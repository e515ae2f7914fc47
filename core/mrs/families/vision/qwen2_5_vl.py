"""Qwen2.5-VL: Qwen2-VL with RMSNorm, gated MLPs and windowed attention in the tower."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.text_defaults import QWEN2_VL
from mrs.architecture.vision.towers.qwen2_5_tower import TOWER_2_5_DEFAULTS, read_windowed_tower
from mrs.architecture.vision.towers.qwen_projector import QWEN2_5
from mrs.architecture.vision.towers.qwen_tower import (
    IMAGE_DEFAULTS,
    NAMES,
    SPELLINGS,
    VIDEO_DEFAULTS,
    read_qwen,
)
from mrs.architecture.vision.video_layouts import RunningVideo
from mrs.architecture.vision.video_reader import read_running
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_windowed_tower(configs.tower)
    vision = read_qwen(configs, text, tower, read_running)
    assert isinstance(vision.video, RunningVideo)
    timed = replace(vision.video, second_positions=configs.tower.positive("tokens_per_second"))
    return replace(vision, video=timed)


FAMILY = VisionFamily(
    "qwen2_5_vl",
    read,
    names={
        **NAMES,
        "ffn.gate": "mlp.gate_proj",
        "ffn.up": "mlp.up_proj",
        "ffn.down": "mlp.down_proj",
    },
    text="qwen2",
    text_types={"qwen2_5_vl": "qwen2", "qwen2_5_vl_text": "qwen2"},
    text_start="model.language_model.",
    head="lm_head",
    text_defaults=QWEN2_VL,
    tower_defaults=TOWER_2_5_DEFAULTS,
    image_defaults=IMAGE_DEFAULTS,
    video_defaults=VIDEO_DEFAULTS,
    spellings=SPELLINGS,
    gguf=QWEN2_5,
)
