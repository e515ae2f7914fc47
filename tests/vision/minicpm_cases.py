"""MiniCPM-V 4.6: with and without its first merger, and slices."""

from __future__ import annotations

from typing import Any

import transformers
from qwen3_cases import HYBRID
from torch import Tensor
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
    MiniCPMV4_6ImageProcessorPil,
)
from vision_case import WORDS, VisionCase

TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
_PATCH = 5
_MODEL: dict[str, Any] = {
    "text_config": {"model_type": "qwen3_5_text", **HYBRID},
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 31,
        "patch_size": _PATCH,
        "initializer_range": 0.08,
    },
    "insert_layer_id": 1,
    "image_token_id": WORDS,
    "video_token_id": WORDS + 1,
    "initializer_range": 0.08,
}


class _Processor(transformers.MiniCPMV4_6Processor):
    """Without its part for films, which needs torchvision."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]

    def __init__(self, images: Any, tokenizer: Any) -> None:
        super(transformers.MiniCPMV4_6Processor, self).__init__(images, tokenizer)
        self.slice_mode, self.default_use_image_id = images.slice_mode, images.use_image_id
        for name, text in TOKENS.items():
            setattr(self, name, text)
        self.image_token_id, self.video_token_id = WORDS, WORDS + 1


def _case(name: str, model: dict[str, Any], **images: Any) -> VisionCase:
    def processor(tokenizer: Any) -> Any:
        for token, text in TOKENS.items():
            setattr(tokenizer, token, text)
        tokenizer.image_token_id, tokenizer.video_token_id = WORDS, WORDS + 1
        return _Processor(MiniCPMV4_6ImageProcessorPil(patch_size=_PATCH, **images), tokenizer)

    def unpack(made: Any) -> Tensor:
        """The pixels of each patch: (patches, patch * patch * 3)."""
        patches = made["pixel_values"][0].unflatten(2, (-1, _PATCH))
        return patches.permute(2, 1, 3, 0).flatten(1)

    return VisionCase(
        "minicpmv4_6",
        name,
        {**_MODEL, **model},
        processor,
        specials=tuple(TOKENS.values()),
        placeholder="<|image_pad|>",
        unpack=unpack,
    )


MINICPM_V = (
    _case("default", {}, scale_resolution=48, max_slice_nums=4),
    _case(
        "4x",
        {"downsample_mode": "4x", "tie_word_embeddings": True},
        scale_resolution=33,
        max_slice_nums=6,
        downsample_mode="4x",
        use_image_id=False,
    ),
    _case("whole", {"insert_layer_id": 0}, scale_resolution=60, slice_mode=False),
)
