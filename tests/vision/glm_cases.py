"""GLM-4.1V, 4.5V, 4.6V and GLM-OCR with two towers each."""

from __future__ import annotations

from typing import Any

import transformers
from qwen_cases import unpack_film
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from vision_case import TEXT, WORDS, VisionCase

TOKEN = "<|image|>"
_SIZE = {"shortest_edge": 2 * 24 * 24, "longest_edge": 2 * 24 * 24 * 9}
_ODD_SIZE = {"shortest_edge": 3 * 15 * 15 * 3, "longest_edge": 3 * 15 * 15 * 20}
_TEXT: dict[str, Any] = {
    **TEXT,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e3,
        "partial_rotary_factor": 0.5,
        "mrope_section": [1, 2, 1],
    },
}
_ODD_TEXT = {
    **_TEXT,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5e4,
        "partial_rotary_factor": 0.75,
        "mrope_section": [3, 1, 2],
    },
}
#: All rotary pairs of a head, of the size in the config where the class reads one.
_WHOLE = {"rope_type": "default", "mrope_section": [2, 3, 3]}
_EXPERTS: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
_ODD_EXPERTS: dict[str, Any] = {
    **_EXPERTS,
    "n_shared_experts": 2,
    "routed_scaling_factor": 2.5,
    "attention_bias": False,
}
_TOWER: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 72,
    "out_hidden_size": 64,
    "num_heads": 4,
    "image_size": 30,
    "patch_size": 6,
    "initializer_range": 0.08,
}
_ODD_TOWER = {
    **_TOWER,
    "hidden_size": 24,
    "num_heads": 2,
    "image_size": 23,
    "patch_size": 5,
    "spatial_merge_size": 3,
    "temporal_patch_size": 3,
    "hidden_act": "gelu",
    "rms_norm_eps": 1e-3,
    "attention_bias": True,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0},
}
_SPECIALS = (TOKEN, "<|video|>", "<|begin_of_video|>", "<|end_of_video|>")


class _Stills(transformers.Glm4vProcessor):
    """A processor that needs none for films."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]


def _case(
    family: str, name: str, text: dict[str, Any], tower: dict[str, Any], images: dict[str, Any]
) -> VisionCase:
    size, merge = tower["patch_size"], tower.get("spatial_merge_size", 2)
    frames = tower.get("temporal_patch_size", 2)

    def processor(tokenizer: Any) -> Any:
        prepare = Glm4vImageProcessorPil(
            size=images, patch_size=size, merge_size=merge, temporal_patch_size=frames
        )
        return _Stills(prepare, tokenizer)

    return VisionCase(
        family,
        name,
        {
            "image_token_id": WORDS,
            "video_token_id": WORDS + 1,
            "text_config": text,
            "vision_config": tower,
            "tie_word_embeddings": name == "odd",
        },
        processor,
        specials=_SPECIALS,
        placeholder=TOKEN,
        sizes=((37, 53), (90, 11), (24, 24)),
        unpack=lambda made: unpack_film(made, size, merge, frames),
    )


GLM_V = (
    _case("glm4v", "default", _TEXT, _TOWER, _SIZE),
    _case("glm4v", "odd", _ODD_TEXT, _ODD_TOWER, _ODD_SIZE),
    _case("glm4v", "whole", {**_TEXT, "rope_parameters": _WHOLE}, _TOWER, _SIZE),
    _case("glm46v", "default", _TEXT, _TOWER, _SIZE),
    _case("glm46v", "odd", _ODD_TEXT, _ODD_TOWER, _ODD_SIZE),
    _case("glm4v_moe", "default", {**_TEXT, **_EXPERTS}, _TOWER, _SIZE),
    _case("glm4v_moe", "odd", {**_ODD_TEXT, **_ODD_EXPERTS}, _ODD_TOWER, _ODD_SIZE),
    _case("glm_ocr", "default", {**_TEXT, "head_dim": 16}, _TOWER, _SIZE),
    _case(
        "glm_ocr",
        "odd",
        {**_ODD_TEXT, "head_dim": 16, "rope_parameters": _WHOLE},
        {**_ODD_TOWER, "attention_bias": False},
        _ODD_SIZE,
    ),
)
