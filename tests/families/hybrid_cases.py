"""Tiny models some of whose layers remember a state instead of tokens."""

from __future__ import annotations

from typing import Any

from case import Case

_CONV = ["conv", "full_attention", "conv"]
_LFM2: dict[str, Any] = {"num_hidden_layers": 3, "layer_types": _CONV}
_NEXT: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}

HYBRIDS: tuple[Case, ...] = (
    Case("lfm2", "default", {**_LFM2, "block_multiple_of": 32}, "lfm2"),
    Case(
        "lfm2",
        "switched",
        {
            **_LFM2,
            "conv_bias": True,
            "tie_word_embeddings": False,
            "block_auto_adjust_ff_dim": False,
        },
        None,
    ),
    Case(
        "lfm2",
        "odd",
        {
            **_LFM2,
            "layer_types": ["full_attention", "conv", "conv"],
            "conv_L_cache": 5,
            "num_key_value_heads": 1,
            "block_ffn_dim_multiplier": 1.3,
            "block_multiple_of": 8,
        },
        "lfm2",
    ),
    Case("qwen3_next", "default", _NEXT, "qwen3next"),
    Case(
        "qwen3_next",
        "switched",
        {
            **_NEXT,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "norm_topk_prob": False,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 1.0,
            },
        },
        None,
    ),
    Case(
        "qwen3_next",
        "odd",
        {
            **_NEXT,
            "head_dim": 24,
            "num_key_value_heads": 1,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 24,
            "linear_value_head_dim": 40,
            "linear_conv_kernel_dim": 3,
            "rms_norm_eps": 1e-4,
        },
        "qwen3next",
    ),
)
