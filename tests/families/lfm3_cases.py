"""Tiny models of LFM 3."""

from __future__ import annotations

from typing import Any

from case import WINDOW, Case

_LFM3: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "conv", "full_attention"],
    "head_dim": 16,
    "sliding_window": WINDOW,
}

LFM3: tuple[Case, ...] = (
    Case("lfm3", "default", _LFM3, None),
    Case(
        "lfm3",
        "switched",
        {
            **_LFM3,
            "num_hidden_layers": 5,
            "layer_types": None,
            "use_sandwich_norm": False,
            "use_attention_gate": False,
            "attention_bias": True,
            "conv_bias": True,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        None,
    ),
    Case(
        "lfm3",
        "odd",
        {
            **_LFM3,
            "layer_types": ["full_attention", "sliding_attention", "conv"],
            "head_dim": 20,
            "num_key_value_heads": 1,
            "conv_L_cache": 4,
            "norm_eps": 1e-3,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1e5,
                    "partial_rotary_factor": 0.3,
                },
                "sliding_attention": {"rope_type": "linear", "rope_theta": 1e3, "factor": 3.0},
            },
        },
        None,
    ),
)
