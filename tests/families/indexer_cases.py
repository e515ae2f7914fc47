"""Tiny models whose attention is to tokens that an indexer chooses."""

from __future__ import annotations

from typing import Any

from case import Case

_SIZES: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "index_head_dim": 16,
    # So many that hardly any score is exactly 0.
    "index_n_heads": 16,
    # The prompt is longer.
    "index_topk": 24,
}
_GROUPS = {"n_group": 4, "topk_group": 2}

#: Sizes of heads that native attention knows.
_EVEN = {**_SIZES, "qk_rope_head_dim": 16, "index_head_dim": 32}

INDEXERS: tuple[Case, ...] = (
    Case("deepseek_v32", "default", {**_SIZES, **_GROUPS}, None),
    Case(
        "deepseek_v32",
        "odd",
        {
            **_SIZES,
            "n_group": 1,
            "topk_group": 1,
            "num_hidden_layers": 3,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "v_head_dim": 20,
            "index_head_dim": 24,
            "index_topk": 40,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        None,
    ),
    # llama.cpp rotates keys in blocks of 64 values.
    Case("glm_moe_dsa", "default", {**_SIZES, "index_head_dim": 64}, "glm-dsa"),
    Case(
        "glm_moe_dsa",
        "odd",
        {**_SIZES, **_GROUPS, "index_head_dim": 8, "index_topk": 7, "norm_topk_prob": False},
        None,
    ),
    Case(
        "glm_moe_dsa",
        "lent",
        {
            **_SIZES,
            "num_hidden_layers": 5,
            "indexer_types": ["full", "shared", "full", "shared", "shared"],
        },
        None,
    ),
    Case("deepseek_v32", "even", {**_EVEN, **_GROUPS}, None),
    Case(
        "glm_moe_dsa",
        "lent-even",
        {
            **_EVEN,
            "num_hidden_layers": 5,
            "indexer_types": ["full", "full", "shared", "full", "shared"],
        },
        None,
    ),
)
