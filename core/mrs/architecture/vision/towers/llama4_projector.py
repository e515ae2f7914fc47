"""The mmproj files of Llama 4, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector


def _configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    edge = clip.positive("image_size")
    return {}, {"size": {"height": edge, "width": edge}}


def _tower(clip: Config) -> Mapping[str, Any]:
    widths = ("projector_input_dim", "projector_output_dim", "vision_output_dim")
    return {
        **dict.fromkeys(widths, clip.positive("adapter_rows")),
        "pixel_shuffle_ratio": 1 / clip.positive("projector.scale_factor", 2),
    }


LLAMA4 = GgufProjector(
    "llama4",
    {
        **GGUF_SIGLIP,
        "class": "v.class_embd",
        "positions": "v.position_embd.weight",
        "pre_norm": "v.pre_ln",
        "projector.up": "mm.model.mlp.1",
        "projector.down": "mm.model.mlp.2",
        "projector.out": "mm.model.fc",
        # The converter of 2026 takes it for a norm of Gemma 4.
        "ffn.norm.weight": "attn_post_norm.weight",
        "ffn.norm.bias": "attn_post_norm.bias",
    },
    "<|patch|>",
    _configs,
    _tower,
)
