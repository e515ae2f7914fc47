"""Qwen2-VL: images of any size, and multimodal rope in the language model."""

from __future__ import annotations

from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.vision.text_defaults import QWEN2_VL
from mrs.architecture.vision.towers.qwen_projector import QWEN2
from mrs.architecture.vision.towers.qwen_tower import (
    IMAGE_DEFAULTS,
    NAMES,
    SPELLINGS,
    TOWER_DEFAULTS,
    VIDEO_DEFAULTS,
    read_qwen,
    read_tower,
)
from mrs.architecture.vision.video_reader import read_running
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = configs.tower
    hidden_size = tower.positive("embed_dim")
    intermediate = int(hidden_size * tower.positive_number("mlp_ratio"))
    mlp = Mlp(intermediate, tower.activation(), gated=False, bias=True)
    norm = Norm(1e-6, "layer", bias=True)
    qwen_tower = read_tower(tower, hidden_size, mlp, norm)
    return read_qwen(configs, text, qwen_tower, read_running)


FAMILY = VisionFamily(
    "qwen2_vl",
    read,
    names={**NAMES, "ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2"},
    text="qwen2",
    text_types={"qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2"},
    text_start="model.language_model.",
    head="lm_head",
    text_defaults=QWEN2_VL,
    tower_defaults={
        **TOWER_DEFAULTS,
        "embed_dim": 1280,
        "mlp_ratio": 4,
        "hidden_act": "quick_gelu",
    },
    image_defaults=IMAGE_DEFAULTS,
    video_defaults=VIDEO_DEFAULTS,
    spellings=SPELLINGS,
    gguf=QWEN2,
)
