"""Tiny models with mixtures of experts."""

from __future__ import annotations

from typing import Any

from case import WINDOW, Case

_QWEN: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_QWEN2: dict[str, Any] = {**_QWEN, "shared_expert_intermediate_size": 48}
_QWEN3: dict[str, Any] = {**_QWEN, "head_dim": 16}
_TIED = {"tie_word_embeddings": True}
_ODD = {"head_dim": 20, "num_key_value_heads": 1}

MIXTURES: tuple[Case, ...] = (
    Case("mixtral", "default", {}, "llama"),
    Case(
        "mixtral",
        "switched",
        {
            **_TIED,
            "sliding_window": WINDOW,
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "hidden_act": "gelu",
        },
        None,
    ),
    Case("mixtral", "odd", {**_ODD, "num_local_experts": 3, "num_experts_per_tok": 1}, "llama"),
    Case("qwen2_moe", "default", _QWEN2, "qwen2moe"),
    Case(
        "qwen2_moe",
        "switched",
        {
            **_QWEN2,
            **_TIED,
            "norm_topk_prob": True,
            "qkv_bias": False,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 3,
        },
        None,
    ),
    Case("qwen2_moe", "odd", {**_QWEN2, "num_experts": 3, "num_key_value_heads": 1}, "qwen2moe"),
    Case("qwen3_moe", "default", {**_QWEN3, "norm_topk_prob": True}, "qwen3moe"),
    Case(
        "qwen3_moe",
        "switched",
        {
            **_QWEN3,
            **_TIED,
            "norm_topk_prob": False,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "num_hidden_layers": 3,
            "mlp_only_layers": [0],
        },
        None,
    ),
    Case("qwen3_moe", "odd", {**_QWEN3, **_ODD, **_TIED, "norm_topk_prob": True}, "qwen3moe"),
)
