"""LLaVA with its defaults, and with everything optional switched."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from vision_case import TEXT, WORDS, VisionCase

CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 6,
    "projection_dim": 16,
    "initializer_range": 0.08,
}
_LLAVA: dict[str, Any] = {
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": CLIP,
    "image_token_index": WORDS,
    "image_seq_length": 16,
}


def _processor(tokenizer: Any) -> transformers.LlavaProcessor:
    images = CLIPImageProcessorPil(
        size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}
    )
    return transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=6,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def _full(tokenizer: Any) -> transformers.LlavaProcessor:
    images = CLIPImageProcessorPil(
        size={"shortest_edge": 30}, crop_size={"height": 24, "width": 24}
    )
    return transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=6,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=1,
    )


LLAVA = (
    VisionCase("llava", "default", _LLAVA, _processor),
    VisionCase(
        "llava",
        "switched",
        {
            **_LLAVA,
            "text_config": {"model_type": "qwen2", **TEXT, "tie_word_embeddings": True},
            "vision_feature_layer": [1, -1],
            "vision_feature_select_strategy": "full",
            "multimodal_projector_bias": False,
            "projector_hidden_act": "silu",
            "tie_word_embeddings": True,
        },
        _full,
    ),
)


def _next(tokenizer: Any) -> transformers.LlavaNextProcessor:
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 24},
        crop_size={"height": 24, "width": 24},
        image_grid_pinpoints=_RESOLUTIONS,
    )
    return transformers.LlavaNextProcessor(
        images,
        tokenizer,
        patch_size=6,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


_RESOLUTIONS = [[24, 48], [48, 24], [48, 48], [72, 24], [24, 72]]
_LLAVA_NEXT = {**_LLAVA, "image_grid_pinpoints": _RESOLUTIONS}

LLAVA_NEXT = (
    VisionCase("llava_next", "default", _LLAVA_NEXT, _next),
    VisionCase(
        "llava_next",
        "switched",
        {
            **_LLAVA_NEXT,
            "text_config": {"model_type": "mistral", **TEXT, "sliding_window": 20},
            "vision_feature_layer": -1,
            "multimodal_projector_bias": False,
        },
        _next,
        sizes=((90, 20), (31, 77), (200, 100)),
    ),
)
