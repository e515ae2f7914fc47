"""Tiny models of Gemma 3n."""

from __future__ import annotations

from typing import Any

from case import WINDOW, Case

_GEMMA: dict[str, Any] = {
    "head_dim": 16,
    "sliding_window": WINDOW,
    "num_hidden_layers": 5,
    "layer_types": [*["full_attention", "sliding_attention"] * 2, "sliding_attention"],
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 160,
    "laurel_rank": 32,
    "activation_sparsity_pattern": [0.95, 0.8, 0.0, 0.0, 0.0],
}

GEMMA3N: tuple[Case, ...] = (
    Case("gemma3n_text", "default", _GEMMA, "gemma3n"),
    Case(
        "gemma3n_text",
        "odd",
        {
            **_GEMMA,
            "num_hidden_layers": 11,
            "num_key_value_heads": 1,
            "layer_types": None,
            "num_kv_shared_layers": 0,
            # Fewer than the vocabulary has.
            "vocab_size_per_layer_input": 150,
            "activation_sparsity_pattern": None,
            "intermediate_size": [96, 64, *[32] * 9],
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "altup_correct_scale": False,
            "final_logit_softcapping": 5.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-4,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
        None,
    ),
)
