"""Qwen2.5-VL: Qwen2-VL with RMSNorm, gated MLPs and windowed attention in the tower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.towers.qwen_mmproj import gguf_tower
from mrs.architecture.vision.towers.qwen_tower import (
    IMAGE_DEFAULTS,
    NAMES,
    SPELLINGS,
    TOWER_DEFAULTS,
    VIDEO_DEFAULTS,
    QwenTower,
    read_qwen,
    read_tower,
)
from mrs.architecture.vision.video_layouts import RunningVideo
from mrs.architecture.vision.video_reader import read_running
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.families.vision import qwen2_vl
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm

#: Defaults of transformers.
TOWER_2_5_DEFAULTS = {
    **TOWER_DEFAULTS,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "hidden_act": "silu",
    "window_size": 112,
    "tokens_per_second": 4,
    "fullatt_block_indexes": (7, 15, 23, 31),
}


def read_windowed_tower(tower: Config) -> QwenTower:
    mlp = Mlp(tower.positive("intermediate_size"), tower.activation(), bias=True)
    return read_tower(
        tower,
        tower.positive("hidden_size"),
        mlp,
        Norm(1e-6),
        window=_read_window(tower),
        full=_read_full_attention_layers(tower),
    )


def _read_window(tower: Config) -> int:
    """Patches along the edge of a window, a multiple of those that are merged to one row."""
    merge = tower.positive("spatial_merge_size")
    window = tower.positive("window_size") // merge // tower.positive("patch_size") * merge
    if not window:
        raise NotReadable(
            "window_size is smaller than the patches that are merged to one row", where=tower.where
        )
    return window


def _read_full_attention_layers(tower: Config) -> tuple[int, ...]:
    """The layers in which patches attend to the whole image."""
    key = "fullatt_block_indexes"
    return tuple(Config({key: index}, tower.where).integer(key) for index in tower.sequence(key))


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_windowed_tower(configs.tower)
    vision = read_qwen(configs, text, tower, read_running)
    assert isinstance(vision.video, RunningVideo)
    timed = replace(vision.video, second_positions=configs.tower.positive("tokens_per_second"))
    return replace(vision, video=timed)


def _gguf_tower(clip: Config) -> dict[str, Any]:
    """Every `n_wa_pattern`-th layer attends to the whole image."""
    period = clip.positive("n_wa_pattern")
    full = range(period - 1, layer_count(clip, "block_count"), period)
    return {
        **gguf_tower(clip),
        "fullatt_block_indexes": list(full),
        "window_size": clip.positive("window_size", 112),
    }


GGUF = replace(qwen2_vl.GGUF, projector="qwen2.5vl_merger", tower=_gguf_tower)

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
    text_defaults=qwen2_vl.TEXT_DEFAULTS,
    tower_defaults=TOWER_2_5_DEFAULTS,
    image_defaults=IMAGE_DEFAULTS,
    video_defaults=VIDEO_DEFAULTS,
    spellings=SPELLINGS,
    gguf=GGUF,
)
