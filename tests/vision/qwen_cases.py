"""Qwen2-VL and Qwen2.5-VL with two towers each."""

from __future__ import annotations

from typing import Any

import transformers
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from vision_case import TEXT, WORDS, VisionCase

TOKEN = "<|image_pad|>"
_SMALL = {"shortest_edge": 24 * 24, "longest_edge": 24 * 24 * 9}
_ODD = {"shortest_edge": 15 * 15 * 3, "longest_edge": 15 * 15 * 20}

_TEXT = {**TEXT, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
_ODD_TEXT = {
    **TEXT,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
    "use_sliding_window": True,
    "sliding_window": 12,
    "max_window_layers": 1,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 5e4,
        "mrope_section": [5, 1, 2],
    },
}
_TOWER: dict[str, Any] = {
    "depth": 3,
    "num_heads": 4,
    "patch_size": 6,
    "initializer_range": 0.08,
}
_ODD_TOWER = {
    **_TOWER,
    "num_heads": 2,
    "patch_size": 5,
    "spatial_merge_size": 3,
    "temporal_patch_size": 3,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0},
}
_MODEL: dict[str, Any] = {"image_token_id": WORDS, "video_token_id": WORDS + 1}


class _Stills:
    """A processor that needs none for films."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]


class _Qwen2Vl(_Stills, transformers.Qwen2VLProcessor):
    pass


class _Qwen25Vl(_Stills, transformers.Qwen2_5_VLProcessor):
    pass


def unpack_film(images: Any, size: int, merge: int, frames: int) -> Tensor:
    """(3, height, width) of squares of patches, all of whose frames are one picture."""
    _, rows, columns = images["image_grid_thw"][0].tolist()
    squares = images["pixel_values"].view(
        rows // merge, columns // merge, merge, merge, 3, frames, size, size
    )
    film = squares.permute(5, 4, 0, 2, 6, 1, 3, 7).reshape(frames, 3, rows * size, columns * size)
    assert (film == film[0]).all()
    return film[0]


def _case(
    family: str, name: str, text: dict[str, Any], tower: dict[str, Any], images: dict[str, Any]
) -> VisionCase:
    kind = _Qwen2Vl if family == "qwen2_vl" else _Qwen25Vl
    size, merge = tower["patch_size"], tower.get("spatial_merge_size", 2)
    frames = tower.get("temporal_patch_size", 2)

    def processor(tokenizer: Any) -> Any:
        prepare = Qwen2VLImageProcessorPil(
            size=images, patch_size=size, merge_size=merge, temporal_patch_size=frames
        )
        return kind(prepare, tokenizer)

    return VisionCase(
        family,
        name,
        {
            **_MODEL,
            "text_config": text,
            "vision_config": tower,
            "tie_word_embeddings": text.get("tie_word_embeddings", False),
        },
        processor,
        specials=(TOKEN, "<|video_pad|>"),
        placeholder=TOKEN,
        unpack=lambda made: unpack_film(made, size, merge, frames),
    )


QWEN_VL = (
    _case("qwen2_vl", "default", _TEXT, {**_TOWER, "embed_dim": 32, "hidden_size": 64}, _SMALL),
    _case(
        "qwen2_vl",
        "odd",
        _ODD_TEXT,
        {
            **_ODD_TOWER,
            "embed_dim": 24,
            "hidden_size": 64,
            "mlp_ratio": 3,
            "hidden_act": "gelu_pytorch_tanh",
        },
        _ODD,
    ),
    _case(
        "qwen2_5_vl",
        "default",
        _TEXT,
        {
            **_TOWER,
            "hidden_size": 32,
            "out_hidden_size": 64,
            "intermediate_size": 48,
            "window_size": 24,
            "fullatt_block_indexes": [1],
        },
        _SMALL,
    ),
    _case(
        "qwen2_5_vl",
        "odd",
        _ODD_TEXT,
        {
            **_ODD_TOWER,
            "hidden_size": 24,
            "out_hidden_size": 64,
            "intermediate_size": 20,
            "hidden_act": "gelu",
            "window_size": 40,
            "fullatt_block_indexes": [0, 2],
        },
        _ODD,
    ),
)
