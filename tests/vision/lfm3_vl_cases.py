"""LFM3-VL: with both kinds of layers in the tower, and with everything optional switched."""

from __future__ import annotations

from typing import Any

import transformers
from qwen3_cases import SPECIALS, qwen3_processor
from qwen_cases import TOKEN, unpack_film
from vision_case import TEXT, WORDS, VisionCase

_TOWER: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "patch_size": 6,
    "initializer_range": 0.08,
}
_ODD_TOWER: dict[str, Any] = {
    **_TOWER,
    "layer_types": ["full_attention", "conv", "conv"],
    "hidden_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "conv_kernel_size": 5,
    "norm_eps": 1e-3,
    "patch_size": 5,
    "spatial_merge_size": 3,
    "temporal_patch_size": 3,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0},
}
_SWITCHED = {"projector_bias": False, "projector_hidden_act": "silu", "tie_word_embeddings": False}
_TEXT: dict[str, Any] = {
    **TEXT,
    "model_type": "lfm3",
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "conv", "full_attention"],
    "head_dim": 16,
    "sliding_window": 16,
}
_SWITCHED_TEXT = {**_TEXT, "use_sandwich_norm": False, "use_attention_gate": False}


class _Stills(transformers.Lfm3VlProcessor):
    """A processor that needs none for films."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]


def _case(
    name: str,
    text: dict[str, Any],
    tower: dict[str, Any],
    images: dict[str, int],
    changes: dict[str, Any],
) -> VisionCase:
    size, merge = tower["patch_size"], tower.get("spatial_merge_size", 2)
    frames = tower.get("temporal_patch_size", 2)
    return VisionCase(
        "lfm3_vl",
        name,
        {
            "image_token_id": WORDS,
            "video_token_id": WORDS + 1,
            "vision_start_token_id": WORDS + 2,
            "vision_end_token_id": WORDS + 3,
            "text_config": text,
            "vision_config": tower,
            "projector_hidden_size": 40,
            **changes,
        },
        qwen3_processor(images, size, merge, frames, _Stills),
        specials=SPECIALS,
        placeholder=TOKEN,
        unpack=lambda made: unpack_film(made, size, merge, frames),
    )


LFM3_VL = (
    _case(
        "default",
        _TEXT,
        _TOWER,
        {"shortest_edge": 24 * 24, "longest_edge": 24 * 24 * 9},
        {},
    ),
    _case(
        "odd",
        _SWITCHED_TEXT,
        _ODD_TOWER,
        {"shortest_edge": 15 * 15 * 3, "longest_edge": 15 * 15 * 20},
        _SWITCHED,
    ),
)
