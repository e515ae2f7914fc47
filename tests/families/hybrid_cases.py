"""Tiny models some of whose layers remember a state instead of tokens."""

from __future__ import annotations

from typing import Any

from case import Case

_CONV = ["conv", "full_attention", "conv"]
_LFM2: dict[str, Any] = {"num_hidden_layers": 3, "layer_types": _CONV}

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
)
