"""Qwen2-VL: images of any size, and multimodal rope in the language model."""

from __future__ import annotations

from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.towers.qwen_mmproj import (
    GGUF_NAMES,
    apart_frames,
    gguf_tower,
    image_limits,
)
from mrs.architecture.vision.towers.qwen_tower import (
    IMAGE_DEFAULTS,
    NAMES,
    SPELLINGS,
    TOKEN,
    TOWER_DEFAULTS,
    VIDEO_DEFAULTS,
    read_qwen,
    read_tower,
)
from mrs.architecture.vision.video_layouts import TOKEN as VIDEO_TOKEN
from mrs.architecture.vision.video_reader import read_running
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.config.config import Config
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm

#: For the language model: not the defaults of Qwen 2 alone.
TEXT_DEFAULTS = {
    "vocab_size": 152_064,
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_window_layers": 80,
}


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = configs.tower
    hidden_size = tower.positive("embed_dim")
    intermediate = int(hidden_size * tower.positive_number("mlp_ratio"))
    mlp = Mlp(intermediate, tower.activation(), gated=False, bias=True)
    norm = Norm(1e-6, "layer", bias=True)
    qwen_tower = read_tower(tower, hidden_size, mlp, norm)
    return read_qwen(configs, text, qwen_tower, read_running)


def _gguf_tower(clip: Config) -> dict[str, Any]:
    """The config has no feed-forward length, and that of the files is not its."""
    return {**gguf_tower(clip), "embed_dim": clip.positive("embedding_length")}


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "qwen2vl_merger",
    GGUF_NAMES,
    TOKEN,
    image_limits(56**2, 28**2 * 2**14),
    _gguf_tower,
    apart_frames,
    video_token=VIDEO_TOKEN,
)

FAMILY = VisionFamily(
    "qwen2_vl",
    read,
    names={**NAMES, "ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2"},
    text="qwen2",
    text_types={"qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2"},
    text_start="model.language_model.",
    head="lm_head",
    text_defaults=TEXT_DEFAULTS,
    tower_defaults={
        **TOWER_DEFAULTS,
        "embed_dim": 1280,
        "mlp_ratio": 4,
        "hidden_act": "quick_gelu",
    },
    image_defaults=IMAGE_DEFAULTS,
    video_defaults=VIDEO_DEFAULTS,
    spellings=SPELLINGS,
    gguf=GGUF,
)
