"""Tiny models of Apertus, AFMoE, Laguna and Muse Glimmer."""

from __future__ import annotations

from typing import Any

from case import WINDOW, Case

_ODD: dict[str, Any] = {"head_dim": 20, "num_key_value_heads": 1}
_AFMOE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}

APERTUS: tuple[Case, ...] = (
    Case("apertus", "default", {}, "apertus"),
    Case(
        "apertus",
        "odd",
        {
            **_ODD,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
        },
        None,
    ),
)
AFMOE: tuple[Case, ...] = (
    Case("afmoe", "default", _AFMOE, None),
    Case("afmoe", "scaled", {**_AFMOE, "mup_enabled": True, "route_scale": 2.5}, "afmoe"),
    Case(
        "afmoe",
        "odd",
        {
            **_AFMOE,
            **_ODD,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "num_dense_layers": 2,
            "num_experts": 3,
            "num_shared_experts": 1,
            "route_scale": 2.5,
            "mup_enabled": True,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        None,
    ),
)
_FULL_FIRST = ["full_attention", *["sliding_attention"] * 3]
_LAGUNA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
LAGUNA: tuple[Case, ...] = (
    Case(
        "laguna",
        "windows",  # as GGUF files have them
        {
            **_LAGUNA,
            "num_hidden_layers": 5,
            "num_attention_heads_per_layer": [4, 6, 2, 2, 4],
            "layer_types": [*_FULL_FIRST, "full_attention"],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 5e5,
                    "partial_rotary_factor": 0.5,
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                },
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 1.0,
                },
            },
        },
        "laguna",
    ),
    Case("laguna", "default", _LAGUNA, "laguna"),
    Case(
        "laguna",
        "odd",
        {
            **_LAGUNA,
            "head_dim": 20,
            "gating": "per-element",
            "attention_bias": True,
            "num_attention_heads_per_layer": [4, 2, 6],
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "moe_routed_scaling_factor": 2.5,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 5e5,
                    "partial_rotary_factor": 0.5,
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                },
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 1.0,
                },
            },
        },
        None,
    ),
)
#: With the published factor of queries, 3.87, rounded keys alone change logits by 4 %.
_MUSE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "qk_scale_factor": 1.5,
}
MUSE_GLIMMER: tuple[Case, ...] = (
    Case("muse_glimmer_text", "default", _MUSE, "muse-glimmer"),
    Case(
        "muse_glimmer_text",
        "odd",
        {
            **_MUSE,
            **_ODD,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "layer_rope_theta": [0, 5e4, 0],
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
            "attention_bias": True,
            "hidden_activation": "gelu_pytorch_tanh",
            "qk_scale_factor": 0.8,
            "output_multiplier": 0.7,
            "final_logit_softcapping": 3.0,
            "post_norm_eps": 0.1,
            "tie_word_embeddings": True,
        },
        None,
    ),
    Case("muse_glimmer_text", "five", {**_MUSE, "num_hidden_layers": 5}, "muse-glimmer"),
)
