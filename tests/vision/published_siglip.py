"""Published models with SigLIP's tower: their configurations, sizes and headers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import transformers

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.formats import FORMATS, Format

_SO400M = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
}
_GEMMA = {
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "image_token_index": 262144,
    "vision_config": {
        **_SO400M,
        "model_type": "siglip_vision_model",
        "image_size": 896,
        "vision_use_head": False,
    },
}
_GEMMA_TEXT = {
    "model_type": "gemma3_text",
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
_GEMMA_IMAGES = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_pan_and_scan": None,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "pan_and_scan_max_num_crops": None,
    "pan_and_scan_min_crop_size": None,
    "pan_and_scan_min_ratio_to_activate": None,
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 896, "width": 896},
}


def _tiles(tile: int) -> dict[str, Any]:
    return {
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": tile},
        "resample": 1,
        "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": 4 * tile},
    }


def _smol(text: dict[str, Any], vision: dict[str, Any], **model: Any) -> dict[str, Any]:
    return {
        "model_type": "smolvlm",
        "text_config": {"model_type": "llama", "vocab_size": 49280, "rms_norm_eps": 1e-5, **text},
        "vision_config": vision,
        "image_token_id": 49190,
        **model,
    }


#: Of each model its config.json as transformers 4 wrote it, preprocessor_config.json, the number
#: of its parameters, and what pictures of (width, height) take in rows.
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any], int, dict[tuple[int, int], int]]] = {
    "gemma-3-4b-it": (
        {
            **_GEMMA,
            "text_config": {
                **_GEMMA_TEXT,
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
            },
        },
        _GEMMA_IMAGES,
        4_300_079_472,
        {(640, 480): 256, (1, 3000): 256},
    ),
    "gemma-3-27b-it": (
        {
            **_GEMMA,
            "text_config": {
                **_GEMMA_TEXT,
                "head_dim": 128,
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "num_attention_heads": 32,
                "num_hidden_layers": 62,
                "num_key_value_heads": 16,
                "query_pre_attn_scalar": 168,
            },
        },
        _GEMMA_IMAGES,
        27_432_406_640,
        {(640, 480): 256},
    ),
    "SmolVLM2-2.2B-Instruct": (
        _smol(
            {
                "head_dim": 64,
                "hidden_size": 2048,
                "intermediate_size": 8192,
                "num_hidden_layers": 24,
                "num_key_value_heads": 32,
            },
            {**_SO400M, "image_size": 384, "model_type": "smolvlm_vision"},
            scale_factor=3,
        ),
        _tiles(384),
        2_246_784_880,
        {(640, 480): 13 * 81, (700, 700): 17 * 81, (3000, 100): 5 * 81},
    ),
    "SmolVLM-256M-Instruct": (
        _smol(
            {
                "hidden_size": 576,
                "intermediate_size": 1536,
                "num_hidden_layers": 30,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "tie_word_embeddings": False,
            },
            {
                "hidden_size": 768,
                "image_size": 512,
                "num_attention_heads": 12,
                "patch_size": 16,
                "model_type": "idefics3",
            },
            scale_factor=4,
            model_type="idefics3",
        ),
        _tiles(512),
        256_484_928,
        {(640, 480): 13 * 64, (512, 512): 17 * 64},
    ),
    "Idefics3-8B-Llama3": (
        {
            "model_type": "idefics3",
            "text_config": {
                "model_type": "llama",
                "intermediate_size": 14336,
                "max_position_embeddings": 10240,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-5,
                "rope_theta": 500000.0,
                "vocab_size": 128259,
            },
            "vision_config": {**_SO400M, "image_size": 364, "model_type": "idefics3"},
        },
        _tiles(364),
        8_462_086_384,
        {(640, 480): 13 * 169, (1456, 1456): 17 * 169},
    ),
}


@dataclass(frozen=True)
class Shape:
    shape: tuple[int, ...]
    format: Format = FORMATS["BF16"]


@dataclass(frozen=True)
class Header:
    """A checkpoint of which only the header is there."""

    model_id: str
    config: Mapping[str, Any]
    image_config: Mapping[str, Any]
    tensors: Mapping[str, Shape]
    container: str = "safetensors"
    video_config: Mapping[str, Any] = field(default_factory=dict)


@cache
def published(name: str, max_edge: int | None = None) -> tuple[Description, int]:
    """What is read of a published model, and how many numbers transformers gives it.

    Tensors are called as transformers 4 called them.
    """
    values, images, _, _ = PUBLISHED[name]
    given = json.loads(json.dumps(values))
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(
            transformers.AutoConfig.for_model(**given)
        )
    own = dict(model.named_parameters())
    tensors = {_as_in_4(name): Shape(tuple(p.shape)) for name, p in own.items()}
    header = Header(name, values, images, tensors)
    description = describe(header, with_vision=True, max_edge=max_edge)
    return description, sum(p.numel() for p in own.values())


def _as_in_4(name: str) -> str:
    for new, old in (
        ("model.language_model.", "language_model.model."),
        ("model.vision_tower.", "vision_tower.vision_model."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    ):
        if name.startswith(new):
            return old + name.removeprefix(new)
    return name
