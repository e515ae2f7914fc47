"""LightOn OCR: Pixtral's tower before Qwen 3."""

from __future__ import annotations

from typing import Any

from mistral3_cases import PIXTRAL
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from vision_case import TEXT, WORDS, RestatedProcessor, VisionCase

_LIGHTON: dict[str, Any] = {
    "text_config": {"model_type": "qwen3", **TEXT, "head_dim": 20},
    "vision_config": {**PIXTRAL, "hidden_act": "silu", "head_dim": 16},
    "image_token_id": WORDS,
    "tie_word_embeddings": True,
}


class _Processor(RestatedProcessor):
    def __init__(self, tokenizer: Any, edge: int, step: int, merged: int) -> None:
        super().__init__(tokenizer)
        self._square = 5 * merged
        self.image_processor = PixtralImageProcessorPil(
            size={"longest_edge": edge}, patch_size={"height": step, "width": step}
        )

    def texts(self, made: dict[str, Any], images: Any) -> list[str]:
        grids = (made["image_sizes"] // self._square).tolist()
        return ["<|image_pad|>" * (rows * columns) for rows, columns in grids]


LIGHTON = (
    VisionCase(
        "lighton_ocr",
        "default",
        _LIGHTON,
        lambda tokenizer: _Processor(tokenizer, 60, 10, 2),
        specials=("<|image_pad|>",),
        placeholder="{}",
    ),
    VisionCase(
        "lighton_ocr",
        "odd",  # images have patches that fill no square
        {
            **_LIGHTON,
            "text_config": {**_LIGHTON["text_config"], "num_key_value_heads": 1},
            "vision_config": {**PIXTRAL, "num_hidden_layers": 3, "head_dim": 16},
            "spatial_merge_size": 3,
            "tie_word_embeddings": False,
        },
        lambda tokenizer: _Processor(tokenizer, 65, 20, 3),
        specials=("<|image_pad|>",),
        placeholder="{}",
        sizes=((90, 20), (31, 77), (200, 100)),
    ),
)
