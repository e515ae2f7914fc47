"""The mmproj files of InternVL, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector


def _configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    edge = clip.positive("image_size")
    tiles = {
        "min_patches": clip.positive("preproc_min_tiles", 1),
        "max_patches": clip.positive("preproc_max_tiles", 12),
    }
    fold = clip.positive("projector.scale_factor", 2)
    return {"downsample_ratio": 1 / fold}, {"size": {"height": edge, "width": edge}, **tiles}


def _tower(clip: Config) -> Mapping[str, Any]:
    return {
        "hidden_act": "silu" if clip.flag("use_silu", False) else "gelu",
        "norm_type": "layer_norm" if clip.flag("has_norm_bias") else "rms_norm",
        "use_qk_norm": clip.flag("has_qk_norm"),
        "attention_bias": clip.flag("has_qkv_bias"),
        "use_mean_pooling": not clip.flag("has_post_norm"),
    }


INTERNVL = GgufProjector(
    "internvl",
    {
        **GGUF_SIGLIP,
        "class": "v.class_embd",
        "positions": "v.position_embd.weight",
        "mixer.q_norm": "attn_q_norm",
        "mixer.k_norm": "attn_k_norm",
        "mixer.scale": "ls1.weight",
        "ffn.scale": "ls2.weight",
        "projector.norm": "mm.model.mlp.0",
        "projector.up": "mm.model.mlp.1",
        "projector.down": "mm.model.mlp.3",
    },
    "<IMG_CONTEXT>",
    _configs,
    _tower,
    texts=("qwen2", "qwen3", "qwen3_moe", "llama"),
)
