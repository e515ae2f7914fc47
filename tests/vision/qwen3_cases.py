"""Qwen3-VL and Qwen 3.5 with two towers each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from qwen_cases import TOKEN, unpack_film
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from vision_case import TEXT, WORDS, VisionCase

_SIZE = {"shortest_edge": 24 * 24, "longest_edge": 24 * 24 * 9}
_ODD_SIZE = {"shortest_edge": 15 * 15 * 3, "longest_edge": 15 * 15 * 20}
_TEXT: dict[str, Any] = {
    **TEXT,
    "num_hidden_layers": 3,
    "head_dim": 24,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e3,
        "mrope_section": [4, 5, 3],
        "mrope_interleaved": True,
    },
}
_ODD_TEXT = {
    **_TEXT,
    "num_key_value_heads": 1,
    "attention_bias": True,
    "rms_norm_eps": 1e-4,
    "rope_parameters": {**_TEXT["rope_parameters"], "rope_theta": 5e4, "mrope_section": [8, 2, 2]},
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
HYBRID: dict[str, Any] = {
    **TEXT,
    "head_dim": 24,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "rope_parameters": {
        **_TEXT["rope_parameters"],
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 2, 2],
    },
}
_SHARED: dict[str, Any] = {**_EXPERTS, "shared_expert_intermediate_size": 40}
_TOWER: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "num_heads": 4,
    "patch_size": 6,
    "num_position_embeddings": 25,
    "initializer_range": 0.08,
}
_ODD_TOWER = {
    **_TOWER,
    "hidden_size": 24,
    "num_heads": 2,
    "patch_size": 5,
    "spatial_merge_size": 3,
    "temporal_patch_size": 3,
    "num_position_embeddings": 16,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0},
}
SPECIALS = (TOKEN, "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")


class _Stills(transformers.Qwen3VLProcessor):
    """A processor that needs none for films."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]


def qwen3_processor(
    images: dict[str, Any], size: int, merge: int, frames: int, kind: Any = _Stills
) -> Callable[[Any], Any]:
    """Makes a processor for images in patches of this `size`, without one for films."""

    def processor(tokenizer: Any) -> Any:
        prepare = Qwen2VLImageProcessorPil(
            size=images, patch_size=size, merge_size=merge, temporal_patch_size=frames
        )
        return kind(prepare, tokenizer)

    return processor


def _case(
    family: str, name: str, text: dict[str, Any], tower: dict[str, Any], images: dict[str, Any]
) -> VisionCase:
    size, merge = tower["patch_size"], tower.get("spatial_merge_size", 2)
    frames = tower.get("temporal_patch_size", 2)
    return VisionCase(
        family,
        name,
        {
            "image_token_id": WORDS,
            "video_token_id": WORDS + 1,
            "vision_start_token_id": WORDS + 2,
            "vision_end_token_id": WORDS + 3,
            "text_config": text,
            "vision_config": tower,
            "tie_word_embeddings": name == "odd",
        },
        qwen3_processor(images, size, merge, frames),
        specials=SPECIALS,
        placeholder=TOKEN,
        unpack=lambda made: unpack_film(made, size, merge, frames),
    )


_DEEP, _ODD_DEEP = {"deepstack_visual_indexes": [0, 2]}, {"deepstack_visual_indexes": [1]}
QWEN3_VL = (
    _case("qwen3_vl", "default", _TEXT, {**_TOWER, **_DEEP}, _SIZE),
    _case("qwen3_vl", "odd", _ODD_TEXT, {**_ODD_TOWER, **_ODD_DEEP}, _ODD_SIZE),
    _case("qwen3_vl_moe", "default", {**_TEXT, **_EXPERTS}, {**_TOWER, **_DEEP}, _SIZE),
    _case(
        "qwen3_vl_moe",
        "odd",
        {**_ODD_TEXT, **_EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
        {**_ODD_TOWER, "deepstack_visual_indexes": []},
        _ODD_SIZE,
    ),
    _case("qwen3_5", "default", HYBRID, _TOWER, _SIZE),
    _case("qwen3_5", "odd", {**HYBRID, "attention_bias": True}, _ODD_TOWER, _ODD_SIZE),
    _case("qwen3_5_moe", "default", {**HYBRID, **_SHARED}, _TOWER, _SIZE),
    _case(
        "qwen3_5_moe",
        "odd",
        {**HYBRID, **_SHARED, "num_key_value_heads": 1},
        _ODD_TOWER,
        _ODD_SIZE,
    ),
)
