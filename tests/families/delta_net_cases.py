"""Tiny models of the Qwen 3.5 families: gated delta nets with separate projections."""

from __future__ import annotations

from typing import Any

from case import Case

_ROPE = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
_DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_ODD: dict[str, Any] = {
    **_DELTA,
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    "head_dim": 24,
    "num_key_value_heads": 1,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 3,
    "rms_norm_eps": 1e-4,
    "tie_word_embeddings": True,
    "attention_bias": True,
    "rope_parameters": {**_ROPE, "mrope_section": [3, 2, 1], "mrope_interleaved": True},
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
_SMALL: dict[str, Any] = {"rope_parameters": _ROPE, "linear_num_key_heads": 1}

DELTA_NETS: tuple[Case, ...] = (
    Case("qwen3_5_text", "default", _DELTA, "qwen35"),
    Case("qwen3_5_text", "odd", _ODD, None),
    Case(
        "qwen3_5_text",
        "tiled",
        {**_DELTA, **_SMALL, "linear_num_key_heads": 4, "linear_num_value_heads": 12},
        "qwen35",
    ),
    Case("qwen3_5_moe_text", "default", {**_DELTA, **_EXPERTS}, "qwen35moe"),
    Case("qwen3_5_moe_text", "odd", {**_ODD, **_EXPERTS, "num_experts": 3}, None),
)
_OLMO: dict[str, Any] = {
    "layer_types": ["full_attention", "linear_attention"],
    "linear_key_head_dim": 16,
}
OLMO_HYBRID: tuple[Case, ...] = (
    Case(
        "olmo_hybrid",
        "default",
        {**_OLMO, "rope_parameters": {"rope_type": "default", "rope_theta": None}},
        None,
    ),
    Case(
        "olmo_hybrid",
        "odd",
        {
            "num_hidden_layers": 5,
            "num_key_value_heads": 1,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_value_head_dim": 40,
            "linear_conv_kernel_dim": 3,
            "linear_allow_neg_eigval": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        None,
    ),
)
