"""Tiny models of Llama 4."""

from __future__ import annotations

from typing import Any

from case import Case

_ODD: dict[str, Any] = {"head_dim": 20, "num_key_value_heads": 1}
_LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "attention_chunk_size": 64,
    "floor_scale": 8,
    "attn_scale": 0.3,
}
_PUBLISHED: dict[str, Any] = {
    **_LLAMA4,
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "interleave_moe_layer_step": 2,
}

LLAMA4: tuple[Case, ...] = (
    Case("llama4_text", "default", _LLAMA4, None),
    Case("llama4_text", "published", _PUBLISHED, "llama4"),
    Case(
        "llama4_text",
        "odd",
        {
            **_LLAMA4,
            **_ODD,
            "num_hidden_layers": 5,
            "interleave_moe_layer_step": 2,
            "no_rope_layer_interval": 2,
            "num_experts_per_tok": 2,
            "use_qk_norm": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "attn_temperature_tuning": False,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        None,
    ),
)
