"""Llama 3.2 Vision with its defaults, and with other sizes, tiles and layers.

Transformers differs from the published model in two places (Meta's `llama-models`): it takes what
leaves a layer of the tower where what enters it was trained with, and lets tokens before the first
picture look at all pictures. `as_published` puts both right, around its classes.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from vision_case import TEXT, WORDS, VisionCase

BEGIN, IMAGE = "<|begin_of_text|>", "<|image|>"
_TEXT: dict[str, Any] = {
    **TEXT,
    "model_type": "mllama_text_model",
    # The image's token is the first behind the vocabulary.
    "vocab_size": WORDS + 2,
    "bos_token_id": WORDS,
    "num_hidden_layers": 4,
    "cross_attention_layers": [1, 3],
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_global_layers": 2,
    "attention_heads": 4,
    "image_size": 24,
    "patch_size": 6,
    "intermediate_layers_indices": [0, 2],
    "vision_output_dim": 96,
    "initializer_range": 0.08,
}
_MLLAMA: dict[str, Any] = {
    "text_config": _TEXT,
    "vision_config": _VISION,
    "image_token_index": WORDS + 2,
}


def see_as_published(model: Any) -> None:
    """Side outputs of the tower are what enters its layers, with the first layer's at 0."""

    def entering(module: Any, args: Any, inputs: dict[str, Any], output: Any) -> Any:
        first = args[0] if args else inputs["hidden_states"]
        output.hidden_states = (first, *output.hidden_states)
        return output

    tower = model.model.vision_model.transformer
    tower.register_forward_hook(entering, with_kwargs=True)


def as_published(model: Any) -> None:
    """Tokens that see no picture pass the layers that look at pictures as they are."""
    see_as_published(model)
    for layer in model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            _mask_attention(layer)


def _mask_attention(layer: Any) -> None:
    masks: list[torch.Tensor | None] = []

    def remember(module: Any, args: Any, inputs: dict[str, Any]) -> None:
        masks[:] = [inputs["full_text_row_masked_out_mask"]]

    def masked(module: Any, args: Any, output: Any) -> Any:
        (mask,) = masks
        return output if mask is None else (output[0] * mask[:, 0], *output[1:])

    layer.register_forward_pre_hook(remember, with_kwargs=True)
    layer.cross_attn.register_forward_hook(masked)


def _processor(edge: int, tiles: int) -> Any:
    def make(tokenizer: Any) -> transformers.MllamaProcessor:
        tokenizer.bos_token = BEGIN
        images = MllamaImageProcessorPil(
            size={"height": edge, "width": edge}, max_image_tiles=tiles
        )
        return transformers.MllamaProcessor(images, tokenizer)

    return make


_COMMON: dict[str, Any] = {
    "specials": (BEGIN, "<|python_tag|>", IMAGE),
    "placeholder": IMAGE,
    "beginning": BEGIN,
    "adapt": as_published,
}
MLLAMA = (
    VisionCase("mllama", "default", _MLLAMA, _processor(24, 4), **_COMMON),
    VisionCase(
        "mllama",
        "switched",
        {
            **_MLLAMA,
            "text_config": {
                **_TEXT,
                "num_hidden_layers": 5,
                "cross_attention_layers": [1, 2, 4],
                "num_key_value_heads": 4,
                "rms_norm_eps": 1e-4,
                "hidden_act": "gelu_pytorch_tanh",
                "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
            },
            "vision_config": {
                **_VISION,
                "image_size": 20,
                "patch_size": 4,
                "max_num_tiles": 6,
                "supported_aspect_ratios": [
                    [rows, columns]
                    for rows in range(1, 7)
                    for columns in range(1, 7)
                    if rows * columns <= 6
                ],
                "intermediate_layers_indices": [1],
                "vision_output_dim": 64,
                "norm_eps": 1e-3,
                "hidden_act": "quick_gelu",
            },
        },
        _processor(20, 6),
        **_COMMON,
    ),
)
