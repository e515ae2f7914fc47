"""Tiny models of Granite's mixtures, and of Granite with windows."""

from __future__ import annotations

from typing import Any

from case import WINDOW, Case

_FACTORS: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "logits_scaling": 8.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.2,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ODD_HEADS = {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 1}
_SWA = {"sliding_window": WINDOW, "num_hidden_layers": 5, "layer_rope_theta": [1e4, 0, 500.0, 0, 2]}
_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}

GRANITES: tuple[Case, ...] = (
    Case("granitemoe", "default", {**_EXPERTS, "attention_multiplier": 0.25}, "granitemoe"),
    Case(
        "granitemoe",
        "odd",
        {
            **_ODD_HEADS,
            "num_local_experts": 3,
            "num_experts_per_tok": 1,
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
        "granitemoe",
    ),
    Case(
        "granitemoeshared",
        "default",
        {**_EXPERTS, **_FACTORS, "shared_intermediate_size": 40},
        "granitemoe",
    ),
    Case("granite_swa", "default", {**_FACTORS, **_SWA}, None),
    Case(
        "granite_swa",
        "odd",
        {
            **_ODD_HEADS,
            **_KINDS,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "mlp_bias": True,
        },
        "granite_swa",
    ),
    Case(
        "granite_swa",
        "pattern",  # as GGUF files have them
        {**_FACTORS, **_SWA, "layer_rope_theta": [1e4, 0, 1e4, 0, 1e4]},
        "granite_swa",
    ),
    Case(
        "granitemoe_swa",
        "default",
        {**_EXPERTS, **_FACTORS, **_SWA, "shared_intermediate_size": 40},
        None,
    ),
    Case(
        "granitemoe_swa", "odd", {**_ODD_HEADS, **_KINDS, **_EXPERTS, "attention_bias": True}, None
    ),
)
