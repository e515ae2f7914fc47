"""Idefics 2: images whole, and split."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil
from vision_case import TEXT, WORDS, VisionCase

SPECIALS = ("<image>", "<fake_token_around_image>", "<end_of_utterance>")
_PATCH = 5
_CONFIG: dict[str, Any] = {
    # The width of the MLP for patches, too: it needs more memory than the tower.
    "text_config": {"model_type": "mistral", **TEXT, "intermediate_size": 600},
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 31,
        "patch_size": _PATCH,
        "initializer_range": 0.08,
    },
    "perceiver_config": {
        "hidden_size": 64,
        "rms_norm_eps": 1e-3,
        "resampler_n_latents": 4,
        "resampler_depth": 2,
        "resampler_n_heads": 6,
        "resampler_head_dim": 12,
        "num_key_value_heads": 2,
        "initializer_range": 0.08,
    },
    "image_token_id": WORDS,
    "initializer_range": 0.08,
}


class _Images(Idefics2ImageProcessorPil):
    """Images of one line, which have no quarters, stay whole: transformers fails on them."""

    def split_images(self, image: Any) -> list[Any]:
        return [image] if min(image.shape[-2:]) < 2 else super().split_images(image)


def _whole(tokenizer: Any) -> transformers.Idefics2Processor:
    images = _Images(size={"shortest_edge": 21, "longest_edge": 48})
    return transformers.Idefics2Processor(images, tokenizer, image_seq_len=4)


def _split(tokenizer: Any) -> transformers.Idefics2Processor:
    images = _Images(
        size={"shortest_edge": 12, "longest_edge": 33}, do_image_splitting=True, resample=3
    )
    return transformers.Idefics2Processor(images, tokenizer, image_seq_len=7)


def _patches(made: dict[str, Any]) -> Tensor:
    """Of all views, without padding: (patches, patch * patch * 3)."""
    found = []
    for pixels, mask in zip(made["pixel_values"][0], made["pixel_attention_mask"][0], strict=True):
        rows, columns = (int(mask.any(axis).sum()) // _PATCH for axis in (1, 0))
        whole = pixels[:, : rows * _PATCH, : columns * _PATCH]
        squares = whole.reshape(3, rows, _PATCH, columns, _PATCH).permute(1, 3, 2, 4, 0)
        found.append(squares.reshape(rows * columns, -1))
    return torch.cat(found)


IDEFICS2 = (
    VisionCase("idefics2", "default", _CONFIG, _whole, SPECIALS, unpack=_patches),
    VisionCase(
        "idefics2",
        "split",
        {
            **_CONFIG,
            "text_config": {**_CONFIG["text_config"], "rms_norm_eps": 1e-3, "hidden_act": "gelu"},
            "perceiver_config": {
                **_CONFIG["perceiver_config"],
                "hidden_act": "gelu",
                "resampler_n_latents": 7,
                "resampler_depth": 1,
                "resampler_n_heads": 4,
                "num_key_value_heads": 4,
            },
            "tie_word_embeddings": True,
        },
        _split,
        SPECIALS,
        unpack=_patches,
    ),
)
