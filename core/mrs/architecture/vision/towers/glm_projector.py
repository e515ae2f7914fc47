"""The mmproj files of the GLM-V families, as llama.cpp's converter writes them."""

from __future__ import annotations

from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.vision.towers.qwen_projector import apart_frames, image_limits, qwen_config
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector


def _tower(clip: Config) -> dict[str, Any]:
    return {
        **qwen_config(clip),
        "out_hidden_size": clip.positive("projection_dim"),
        "rms_norm_eps": clip.number("attention.layer_norm_epsilon"),
        "hidden_act": "gelu" if clip.values.get("use_gelu") else "silu",
        "attention_bias": clip.flag("has_joint_bias", False),
        "has_qk_norm": clip.flag("has_qk_norm", False),
    }


GLM = GgufProjector(
    "glm4v",
    {
        **GGUF_SIGLIP,
        "patches.1.weight": "v.patch_embd.weight.1",
        "pre_norm": "v.norm_embd",
        "mixer.qkv": "attn_qkv",
        "mixer.q_norm": "attn_q_norm",
        "mixer.k_norm": "attn_k_norm",
        "ffn.gate": "ffn_gate",
        "projector.merge": "mm.patch_merger",
        "projector.in": "mm.model.fc",
        "projector.norm": "mm.post_norm",
        "projector.gate": "mm.gate",
        "projector.up": "mm.up",
        "projector.down": "mm.down",
    },
    "<|image|>",
    image_limits(112**2, 28**2 * 15_000),
    _tower,
    apart_frames,
    texts=("glm4", "glm4_moe"),
)
