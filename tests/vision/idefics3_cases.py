"""Idefics 3 and SmolVLM: small and large tiles, split and not."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from vision_case import TEXT, WORDS, VisionCase

SPECIALS = (
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 4,
}
_IDEFICS3: dict[str, Any] = {
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": _VISION,
    "scale_factor": 3,
    "image_token_id": WORDS,
    "initializer_range": 0.08,
}


def _idefics3(tokenizer: Any) -> transformers.Idefics3Processor:
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 72}, max_image_size={"longest_edge": 24}
    )
    return transformers.Idefics3Processor(images, tokenizer, image_seq_len=4)


def _unsplit(tokenizer: Any) -> transformers.Idefics3Processor:
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 50},
        max_image_size={"longest_edge": 24},
        do_image_splitting=False,
        resample=3,
    )
    return transformers.Idefics3Processor(images, tokenizer, image_seq_len=9)


def _smolvlm(tokenizer: Any) -> transformers.Idefics3Processor:
    """SmolVLM's own processor is for films, too, and so needs torchvision."""
    images = SmolVLMImageProcessorPil(
        size={"longest_edge": 65}, max_image_size={"longest_edge": 33}
    )
    return transformers.Idefics3Processor(images, tokenizer, image_seq_len=16)


IDEFICS3 = (
    VisionCase("idefics3", "default", _IDEFICS3, _idefics3, SPECIALS),
    VisionCase(
        "idefics3",
        "switched",
        {
            **_IDEFICS3,
            "text_config": {"model_type": "llama", **TEXT, "tie_word_embeddings": True},
            "vision_config": {**_VISION, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
            "tie_word_embeddings": True,
            "scale_factor": 2,
        },
        _unsplit,
        SPECIALS,
    ),
    VisionCase("smolvlm", "odd", {**_IDEFICS3, "scale_factor": 2}, _smolvlm, SPECIALS),
)
