"""Tiny models with mixtures of experts."""

from __future__ import annotations

from typing import Any

from case import WINDOW, Case

_QWEN: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_QWEN2: dict[str, Any] = {**_QWEN, "shared_expert_intermediate_size": 48}
_QWEN3: dict[str, Any] = {**_QWEN, "head_dim": 16}
_TIED = {"tie_word_embeddings": True}
_ODD = {"head_dim": 20, "num_key_value_heads": 1}
_DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
_GROUPS = {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
_YARN: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    }
}
_GPT_OSS: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
}
_LONGROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [1.5 + 0.4 * i for i in range(8)],
        "short_mscale": 1.1,
        "long_mscale": 1.3,
        "original_max_position_embeddings": 128,
    }
}

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
    Case("deepseek_v2", "default", {**_DEEPSEEK, "first_k_dense_replace": 1}, "deepseek2"),
    Case(
        "deepseek_v2",
        "switched",
        {
            **_DEEPSEEK,
            **_TIED,
            **_YARN,
            "q_lora_rank": None,
            "attention_bias": True,
            "mlp_bias": True,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 16.0,
            "first_k_dense_replace": 1,
        },
        None,
    ),
    Case(
        "deepseek_v2",
        "odd",
        {
            **_DEEPSEEK,
            **_YARN,
            "q_lora_rank": None,
            "qk_nope_head_dim": 12,
            "v_head_dim": 20,
            "n_shared_experts": 1,
        },
        "deepseek2",
    ),
    Case("deepseek_v3", "default", {**_DEEPSEEK, **_GROUPS}, "deepseek2"),
    Case(
        "deepseek_v3",
        "switched",
        {
            **_DEEPSEEK,
            **_TIED,
            **_YARN,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 0,
            "norm_topk_prob": False,
            "q_lora_rank": None,
            "attention_bias": True,
            "rope_interleave": False,
        },
        None,
    ),
    Case(
        "deepseek_v3",
        "odd",
        {**_DEEPSEEK, **_GROUPS, **_YARN, "qk_nope_head_dim": 12, "v_head_dim": 20},
        "deepseek2",
    ),
    Case("gpt_oss", "default", _GPT_OSS, "gpt-oss"),
    Case(
        "gpt_oss",
        "switched",
        {
            **_GPT_OSS,
            **_TIED,
            "attention_bias": False,
            "swiglu_limit": 0.3,
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": WINDOW,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 47,
            },
        },
        None,
    ),
    Case(
        "gpt_oss",
        "odd",
        {
            **_GPT_OSS,
            **_ODD,
            "sliding_window": WINDOW,
            "num_hidden_layers": 3,
            "num_local_experts": 3,
            "num_experts_per_tok": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        "gpt-oss",
    ),
    Case("phimoe", "default", {"num_local_experts": 4}, "phimoe"),
    Case(
        "phimoe",
        "switched",
        {
            **_TIED,
            **_LONGROPE,
            "attention_bias": True,
            "lm_head_bias": True,
            "num_local_experts": 4,
            "sliding_window": WINDOW,
            "router_jitter_noise": 0.2,
        },
        None,
    ),
    Case("phimoe", "odd", {"num_local_experts": 3, "num_key_value_heads": 1}, "phimoe"),
)
