"""Tiny models of Gemma 4."""

from __future__ import annotations

from typing import Any

from case import WINDOW, Case

_GEMMA: dict[str, Any] = {"head_dim": 16, "global_head_dim": 32, "sliding_window": WINDOW}
_PLAIN: dict[str, Any] = {**_GEMMA, "hidden_size_per_layer_input": 0}
_SWITCHED: dict[str, Any] = {
    **_GEMMA,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "final_logit_softcapping": 5.0,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.5,
            "rope_theta": 5e5,
        },
    },
}
_EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
}

_SMALL: dict[str, Any] = {
    **_GEMMA,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 160,
}
_UNBIASED: dict[str, Any] = {
    **_SWITCHED,
    "attention_bias": False,
    "use_double_wide_mlp": True,
    "num_kv_shared_layers": 2,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}

SHARED: tuple[Case, ...] = (
    Case("gemma4_text", "shared", _SMALL, "gemma4"),
    Case("gemma4_text", "wide", {**_SMALL, **_UNBIASED}, "gemma4"),
    Case(
        "gemma4_text",
        "shared-odd",
        {
            **_SMALL,
            **_SWITCHED,
            "num_hidden_layers": 5,
            "layer_types": ["full_attention", "sliding_attention", *["full_attention"] * 3],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "vocab_size_per_layer_input": 170,
        },
        None,
    ),
)
GEMMA4: tuple[Case, ...] = (
    Case("gemma4_text", "default", {**_PLAIN, "num_hidden_layers": 6}, "gemma4"),
    Case("gemma4_text", "odd", {**_SWITCHED, "hidden_size_per_layer_input": 0}, None),
    Case("gemma4_text", "experts", {**_PLAIN, **_EXPERTS}, "gemma4"),
    Case("gemma4_unified_text", "default", _GEMMA, None),
    Case("gemma4_unified_text", "odd", _SWITCHED, None),
    *SHARED,
)
