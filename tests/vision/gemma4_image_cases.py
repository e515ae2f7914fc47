"""Gemma 4: with images that attend both ways, with per-layer embeddings, and without a tower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.gemma4_unified import modeling_gemma4_unified
from vision_case import TEXT, WORDS, RestatedProcessor, VisionCase

_ROWS = 70
_TEXT: dict[str, Any] = {
    **TEXT,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 24,
    "hidden_size_per_layer_input": 0,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "use_bidirectional_attention": "vision",
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 4,  # with fewer, bf16 chooses others, in transformers too
    "moe_intermediate_size": 24,
}
_SMALL: dict[str, Any] = {
    **TEXT,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 24,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 100,
    "pad_token_id": 3,
}
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 200,
    "initializer_range": 0.08,
}
_BOUNDED = {
    **_TOWER,
    "head_dim": 20,
    "patch_size": 3,
    "pooling_kernel_size": 3,
    "position_embedding_size": 230,
    "use_clipped_linears": True,
    "standardize": True,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 50.0},
}
_TOKEN, _BEGIN, _END = "<|image|>", "<|image>", "<image|>"


class _Processor(RestatedProcessor):
    def __init__(
        self, tokenizer: Any, patch: int, pool: int, rows: int = _ROWS, **saved: Any
    ) -> None:
        super().__init__(tokenizer)
        self._saved = saved
        self.image_processor = Gemma4ImageProcessorPil(
            patch_size=patch, pooling_kernel_size=pool, max_soft_tokens=rows
        )

    def __call__(self, text: list[str], images: Any = None, **settings: Any) -> dict[str, Any]:
        inputs = super().__call__(text, images)
        return {**inputs, "mm_token_type_ids": (inputs["input_ids"] == WORDS).long()}

    def texts(self, made: dict[str, Any], images: Any) -> list[str]:
        counts = made.pop("num_soft_tokens_per_image").tolist()
        return [_BEGIN + _TOKEN * rows + _END for rows in counts]

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **self._saved}


def _unpack(images: Any, size: int) -> Tensor:
    """(3, height, width) of patches and their positions."""
    at = images["image_position_ids"][0]
    columns, rows = (at.max(0).values + 1).tolist()
    patches = images["pixel_values"][0, : rows * columns]
    grid = patches.view(rows, columns, size, size, 3)
    return grid.permute(4, 0, 2, 1, 3).reshape(3, rows * size, columns * size)


def _case(name: str, text: dict[str, Any], tower: dict[str, Any], rows: int = _ROWS) -> VisionCase:
    size, pool = tower["patch_size"], tower["pooling_kernel_size"]
    return VisionCase(
        "gemma4",
        name,
        {
            "text_config": text,
            "vision_config": tower,
            "audio_config": None,
            "image_token_id": WORDS,
            "video_token_id": WORDS + 3,
            "audio_token_id": WORDS + 4,
        },
        lambda tokenizer: _Processor(tokenizer, size, pool, rows),
        specials=(_TOKEN, _BEGIN, _END, "<|video|>", "<|audio|>"),
        placeholder="{}",
        unpack=lambda made: _unpack(made, size) * 2 - 1,
        half_tolerance=0.15,  # scores are not scaled
    )


def _mask_as_in_generation(model: Any) -> None:
    """In transformers' forward pass alone, full layers attend both ways; not if it generates."""
    usual = modeling_gemma4_unified.create_masks_for_generate

    def masks(block_sequence_ids: Any = None, **given: Any) -> Any:
        if block_sequence_ids is None:
            return usual(**given)
        return modeling_gemma4_unified.create_masks_for_vision_model(
            block_sequence_ids=block_sequence_ids, **given
        )

    modeling_gemma4_unified.create_masks_for_generate = masks


def _unified(
    name: str, text: dict[str, Any], patch: int, pool: int, rows: int = _ROWS
) -> VisionCase:
    """Transformers' processor for it merges patches to squares, which are then its patches."""
    square = patch * pool
    sizes = {"patch_size": patch, "pooling_kernel_size": pool}
    tower = {**sizes, "mm_embed_dim": 40, "output_proj_dims": 40, "mm_posemb_size": rows + 20}
    return replace(
        _case(name, text, _TOWER),
        family="gemma4_unified",
        config={
            "text_config": {**text, "head_dim": 16, "global_head_dim": 32, "sliding_window": 24},
            "vision_config": {**tower, "initializer_range": 0.08},
            "audio_config": None,
            "image_token_id": WORDS,
            "video_token_id": WORDS + 3,
            "audio_token_id": WORDS + 4,
        },
        processor=lambda tokenizer: _Processor(tokenizer, square, 1, rows, **sizes),
        unpack=lambda made: _unpack(made, square),
        adapt=_mask_as_in_generation,
    )


_LAYERS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA4 = (
    _case("experts", _TEXT, _TOWER),
    replace(_case("small", _SMALL, _BOUNDED), seed=4),  # its reply has rows for each layer
    _unified("default", {**TEXT, **_LAYERS}, 4, 3),
    _unified("switched", {**TEXT, **_LAYERS, "use_bidirectional_attention": None}, 5, 2),
)
_POOLED = {**_TOWER, "pooling_kernel_size": 3, "position_embedding_size": 900}
_STANDARD = {
    **{key: value for key, value in _BOUNDED.items() if key != "rope_parameters"},
    "position_embedding_size": 900,
}
#: What mmproj files do not say is as in published models.
GEMMA4_PUBLISHED = (
    _case("published", _TEXT, _POOLED, 280),
    _case(
        "published-small",
        {**_SMALL, "vocab_size_per_layer_input": 128, "pad_token_id": 0},
        _STANDARD,
        280,
    ),
    _unified("published", {**TEXT, **_LAYERS}, 4, 3, 280),
)
