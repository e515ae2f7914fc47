"""Gemma 3 with its defaults; with long pictures in stretches; and with all else switched."""

from __future__ import annotations

from typing import Any, ClassVar

import transformers
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from vision_case import TEXT, WORDS, VisionCase

SPECIALS = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
_TEXT: dict[str, Any] = {**TEXT, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 12}
_GEMMA3: dict[str, Any] = {
    "text_config": {**_TEXT, "num_hidden_layers": 3, "sliding_window_pattern": 2},
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 24,
        "patch_size": 4,
        "vision_use_head": False,
    },
    "mm_tokens_per_image": 9,
    "boi_token_index": WORDS,
    "eoi_token_index": WORDS + 1,
    "image_token_index": WORDS + 2,
    "initializer_range": 0.08,
}


class PanningProcessor(transformers.Gemma3Processor):
    """Asks for stretches where nothing is said; the class itself leaves them off."""

    images_kwargs: ClassVar[dict[str, Any]] = {
        **transformers.Gemma3Processor.images_kwargs,
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": 15,
        "pan_and_scan_max_num_crops": 3,
    }


def _processor(tokenizer: Any, **changes: Any) -> transformers.Gemma3Processor:
    for name, token in zip(("boi", "eoi", "image"), SPECIALS, strict=True):
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))
    images = Gemma3ImageProcessorPil(size={"height": 24, "width": 24}, **changes)
    kind = PanningProcessor if changes else transformers.Gemma3Processor
    return kind(images, tokenizer, image_seq_length=9)


def _panning(tokenizer: Any) -> transformers.Gemma3Processor:
    return _processor(
        tokenizer,
        do_pan_and_scan=True,
        pan_and_scan_min_crop_size=15,
        pan_and_scan_max_num_crops=3,
        pan_and_scan_min_ratio_to_activate=1.2,
        resample=3,
    )


GEMMA3 = (
    VisionCase("gemma3", "default", _GEMMA3, _processor, SPECIALS, SPECIALS[0]),
    VisionCase(
        "gemma3",
        "switched",
        {
            **_GEMMA3,
            "text_config": {
                **_GEMMA3["text_config"],
                "sliding_window": 5,
                "attention_bias": True,
                "head_dim": 8,
            },
            "vision_config": {
                **_GEMMA3["vision_config"],
                "vision_use_head": True,
                "hidden_act": "gelu",
                "layer_norm_eps": 1e-3,
            },
        },
        _panning,
        SPECIALS,
        SPECIALS[0],
        sizes=((90, 41), (24, 24), (16, 70)),
    ),
)
