"""PaddleOCR-VL with two towers."""

from __future__ import annotations

from typing import Any

import transformers
from torch import Tensor
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
    PaddleOCRVLImageProcessorPil,
)
from vision_case import TEXT, WORDS, VisionCase

TOKEN = "<|IMAGE_PLACEHOLDER|>"
_TEXT: dict[str, Any] = {
    **TEXT,
    "head_dim": 24,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e3,
        "mrope_section": [4, 5, 3],
    },
}
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 6,
    "initializer_range": 0.08,
}


def _case(
    name: str, text: dict[str, Any], tower: dict[str, Any], least: int, most: int
) -> VisionCase:
    size, merge = tower["patch_size"], tower.get("spatial_merge_size", 2)
    pixels = (size * merge) ** 2

    def processor(tokenizer: Any) -> Any:
        tokenizer.image_token, tokenizer.image_token_id = TOKEN, WORDS
        images = PaddleOCRVLImageProcessorPil(
            size={"shortest_edge": least * pixels, "longest_edge": most * pixels},
            patch_size=size,
            merge_size=merge,
        )
        return transformers.PaddleOCRVLProcessor(images, tokenizer)

    def unpack(made: Any) -> Tensor:
        """(3, height, width) of patches row by row."""
        _, rows, columns = made["image_grid_thw"][0].tolist()
        patches = made["pixel_values"].view(rows, columns, 3, size, size)
        return patches.permute(2, 0, 3, 1, 4).reshape(3, rows * size, columns * size)

    return VisionCase(
        "paddleocr_vl",
        name,
        {
            "image_token_id": WORDS,
            "text_config": text,
            "vision_config": tower,
            "tie_word_embeddings": name == "odd",
        },
        processor,
        specials=(TOKEN, "<|IMAGE_START|>", "<|IMAGE_END|>"),
        placeholder=TOKEN,
        sizes=((37, 53), (90, 11), (24, 24)),
        unpack=unpack,
    )


PADDLEOCR_VL = (
    _case("default", _TEXT, _TOWER, 2, 9),
    _case(
        "odd",
        {**_TEXT, "num_key_value_heads": 1, "use_bias": True, "rms_norm_eps": 1e-4},
        {
            **_TOWER,
            "hidden_size": 24,
            "num_attention_heads": 2,
            "image_size": 23,
            "patch_size": 5,
            "spatial_merge_size": 3,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0},
        },
        3,
        20,
    ),
)
