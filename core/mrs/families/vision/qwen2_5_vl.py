"""Qwen2.5-VL: Qwen2-VL with RMSNorm, gated MLPs and windowed attention in the tower."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.vision.towers.qwen_projector import QWEN2_5
from mrs.architecture.vision.towers.qwen_tower import (
    IMAGE_DEFAULTS,
    NAMES,
    SPELLINGS,
    TEXT_DEFAULTS,
    TOWER_DEFAULTS,
    VIDEO_DEFAULTS,
    read_qwen,
    read_tower,
)
from mrs.architecture.vision.video_layouts import RunningVideo, read_running
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.errors import NotReadable


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = configs.tower
    mlp = Mlp(tower.positive("intermediate_size"), tower.activation(), bias=True)
    qwen_tower = read_tower(
        tower,
        tower.positive("hidden_size"),
        mlp,
        Norm(1e-6),
        window=read_window(tower),
        full=read_full_attention_layers(tower),
    )
    vision = read_qwen(configs, text, qwen_tower, read_running)
    assert isinstance(vision.video, RunningVideo)
    timed = replace(vision.video, second_positions=tower.positive("tokens_per_second"))
    return replace(vision, video=timed)


def read_window(tower: Config) -> int:
    """Patches along the edge of a window, a multiple of those that are merged to one row."""
    merge = tower.positive("spatial_merge_size")
    window = tower.positive("window_size") // merge // tower.positive("patch_size") * merge
    if not window:
        raise NotReadable(
            "window_size is smaller than the patches that are merged to one row", where=tower.where
        )
    return window


def read_full_attention_layers(tower: Config) -> tuple[int, ...]:
    """The layers in which patches attend to the whole image."""
    key = "fullatt_block_indexes"
    return tuple(Config({key: index}, tower.where).integer(key) for index in tower.sequence(key))


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
    text_defaults=TEXT_DEFAULTS,
    tower_defaults={
        **TOWER_DEFAULTS,
        "hidden_size": 3584,
        "intermediate_size": 3420,
        "hidden_act": "silu",
        "window_size": 112,
        "tokens_per_second": 4,
        "fullatt_block_indexes": (7, 15, 23, 31),
    },
    image_defaults=IMAGE_DEFAULTS,
    video_defaults=VIDEO_DEFAULTS,
    spellings=SPELLINGS,
    gguf=QWEN2_5,
)
