"""Tiny models of newer families without experts."""

from __future__ import annotations

from typing import Any

from case import WINDOW, Case

_TIED = {"tie_word_embeddings": True}
_UNTIED = {"tie_word_embeddings": False}
_ODD = {"head_dim": 20, "num_key_value_heads": 1}
_ODD_HEADS = {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 1}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_OLMO_ROPE = {"full_attention": _YARN, "sliding_attention": _PLAIN}
MISTRAL_ROPE = {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
_MIXED = {
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "num_hidden_layers": 3,
    "sliding_window": WINDOW,
}

DENSE: tuple[Case, ...] = (
    Case("seed_oss", "default", {"head_dim": 16}, "seed_oss"),
    Case(
        "seed_oss",
        "odd",
        {**_ODD, **_TIED, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
        None,
    ),
    Case("olmo2", "default", {}, "olmo2"),
    Case("olmo2", "odd", {**_ODD_HEADS, **_TIED, "attention_bias": True}, None),
    Case("olmo3", "default", {"num_hidden_layers": 4, "sliding_window": WINDOW}, "olmo2"),
    Case("olmo3", "scaled", {**_MIXED, "rope_parameters": _OLMO_ROPE}, "olmo2"),
    Case(
        "olmo3",
        "odd",
        {
            **_ODD_HEADS,
            **_MIXED,
            **_TIED,
            "attention_bias": True,
            "rope_parameters": _OLMO_ROPE,
        },
        None,
    ),
    Case("exaone", "default", {}, "exaone"),
    Case(
        "exaone",
        "odd",
        {**_ODD, **_TIED, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
        None,
    ),
    Case(
        "exaone",
        "llama3",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e6,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        "exaone",
    ),
    Case("exaone4", "default", {"num_hidden_layers": 4, "sliding_window": WINDOW}, "exaone4"),
    Case("exaone4", "odd", {**_ODD_HEADS, **_MIXED, **_TIED}, "exaone4"),
    Case(
        "exaone4",
        "full",
        {"sliding_window": None, "layer_types": ["full_attention"] * 2},
        "exaone4",
    ),
    Case("ernie4_5", "default", {"head_dim": 16}, "ernie4_5"),
    Case("ernie4_5", "odd", {**_ODD, **_UNTIED, "use_bias": True}, None),
    Case("hunyuan_v1_dense", "default", {"head_dim": 16}, "hunyuan-dense"),
    Case(
        "hunyuan_v1_dense",
        "odd",
        {
            **_ODD,
            **_TIED,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 10000.0,
                "factor": 1.0,
                "alpha": 100.0,
            },
        },
        None,
    ),
    Case("ministral3", "default", {"head_dim": 16, "rope_parameters": MISTRAL_ROPE}, "mistral3"),
    Case(
        "ministral3",
        "odd",
        {
            **_ODD,
            **_TIED,
            "sliding_window": WINDOW,
            "rope_parameters": {**MISTRAL_ROPE, "factor": 8.0},
        },
        None,
    ),
    Case("cohere2", "default", {"num_hidden_layers": 4, "sliding_window": WINDOW}, "cohere2"),
    Case(
        "cohere2",
        "odd",
        {**_ODD_HEADS, **_MIXED, **_UNTIED, "attention_bias": True, "logit_scale": 0.5},
        None,
    ),
    Case("arcee", "default", {}, "arcee"),
    Case("arcee", "odd", {**_ODD, **_TIED, "attention_bias": True, "mlp_bias": True}, None),
)
