"""InternVL with two towers."""

from __future__ import annotations

from typing import Any

from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from vision_case import TEXT, WORDS, RestatedProcessor, VisionCase

_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": [24, 24],
    "patch_size": [6, 6],
    "layer_scale_init_value": 0.5,
    "initializer_range": 0.08,
}
_MODEL: dict[str, Any] = {
    "text_config": {"model_type": "qwen2", **TEXT},
    "vision_config": _TOWER,
    "image_token_id": WORDS,
    "image_seq_length": 4,
    "tie_word_embeddings": False,
}
_TOKEN, _BEGIN, _END = "<IMG_CONTEXT>", "<img>", "</img>"


class _Processor(RestatedProcessor):
    def __init__(self, tokenizer: Any, edge: int, rows: int, most: int) -> None:
        super().__init__(tokenizer)
        self._rows = rows
        self.image_processor = GotOcr2ImageProcessorPil(
            size={"height": edge, "width": edge}, max_patches=most, crop_to_patches=True
        )

    def texts(self, made: dict[str, Any], images: Any) -> list[str]:
        counts = made.pop("num_patches")
        return [_BEGIN + _TOKEN * self._rows * int(tiles) + _END for tiles in counts]


def _case(name: str, config: dict[str, Any], edge: int, rows: int, most: int) -> VisionCase:
    return VisionCase(
        "internvl",
        name,
        {**_MODEL, **config},
        lambda tokenizer: _Processor(tokenizer, edge, rows, most),
        specials=(_TOKEN, _BEGIN, _END),
        placeholder="{}",
    )


INTERNVL = (
    _case("default", {}, 24, 4, 6),
    _case(
        "switched",
        {
            "text_config": {"model_type": "qwen3", **TEXT, "head_dim": 20},
            "vision_config": {
                **_TOWER,
                "image_size": [40, 40],
                "patch_size": [5, 5],
                "norm_type": "rms_norm",
                "use_qk_norm": True,
                "attention_bias": True,
                "use_mean_pooling": False,
                "hidden_act": "silu",
            },
            "downsample_ratio": 0.25,
            "projector_hidden_act": "silu",
            "tie_word_embeddings": True,
        },
        40,
        4,
        4,
    ),
)
