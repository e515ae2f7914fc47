"""Mistral 3 with Pixtral's tower."""

from __future__ import annotations

from typing import Any

from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from vision_case import TEXT, WORDS, RestatedProcessor, VisionCase

PIXTRAL: dict[str, Any] = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 60,
    "patch_size": 5,
    "initializer_range": 0.08,
}
_MISTRAL3: dict[str, Any] = {
    "text_config": {"model_type": "mistral", **TEXT, "head_dim": 20, "sliding_window": None},
    "vision_config": PIXTRAL,
    "image_token_index": WORDS,
    "tie_word_embeddings": False,
}
#: With a factor of queries that grows from the prompt's first half on.
_MINISTRAL3: dict[str, Any] = {
    "model_type": "ministral3",
    **TEXT,
    "head_dim": 20,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
_SPECIALS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")


class _Processor(RestatedProcessor):
    def __init__(self, tokenizer: Any, edge: int, merged: int) -> None:
        super().__init__(tokenizer)
        self._square = 5 * merged
        square = {"height": self._square, "width": self._square}
        self.image_processor = PixtralImageProcessorPil(
            size={"longest_edge": edge}, patch_size=square
        )

    def texts(self, made: dict[str, Any], images: Any) -> list[str]:
        grids = (made["image_sizes"] // self._square).tolist()
        return [
            "[IMG_BREAK]".join(["[IMG]" * columns] * rows) + "[IMG_END]" for rows, columns in grids
        ]


MISTRAL3 = (
    VisionCase(
        "mistral3",
        "default",
        _MISTRAL3,
        lambda tokenizer: _Processor(tokenizer, 60, 2),
        specials=_SPECIALS,
        placeholder="{}",
    ),
    VisionCase(
        "mistral3",
        "switched",
        {
            **_MISTRAL3,
            "text_config": {**_MISTRAL3["text_config"], "tie_word_embeddings": True},
            "tie_word_embeddings": True,
            "vision_config": {**PIXTRAL, "num_hidden_layers": 3, "hidden_act": "silu"},
            "vision_feature_layer": -2,
            "spatial_merge_size": 3,
            "multimodal_projector_bias": True,
            "projector_hidden_act": "silu",
        },
        lambda tokenizer: _Processor(tokenizer, 45, 3),
        specials=_SPECIALS,
        placeholder="{}",
        sizes=((90, 20), (31, 77), (200, 100)),
    ),
    VisionCase(
        "mistral3",
        "ministral3",
        {**_MISTRAL3, "text_config": _MINISTRAL3, "vision_config": PIXTRAL},
        lambda tokenizer: _Processor(tokenizer, 60, 2),
        specials=_SPECIALS,
        placeholder="{}",
    ),
)
