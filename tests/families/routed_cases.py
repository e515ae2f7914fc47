"""Tiny models of newer families with experts."""

from __future__ import annotations

from typing import Any

from case import WINDOW, Case
from dense_cases import MISTRAL_ROPE

_TIED = {"tie_word_embeddings": True}
_ODD = {"head_dim": 20, "num_key_value_heads": 1}
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
}
_GROUPS = {"n_group": 4, "topk_group": 2}
_MLA: dict[str, Any] = {
    **_ROUTED,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
_COHERE: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
_CONV = ["conv", "full_attention", "conv"]
_LFM2: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": _CONV,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_dense_layers": 1,
}
_ERNIE: dict[str, Any] = {
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 3,
}

_EXAONE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}

_HY: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}

_MIMO: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 24,
    "v_head_dim": 16,
    "num_key_value_heads": 2,
    "sliding_window": WINDOW,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}

ROUTED: tuple[Case, ...] = (
    Case("glm4_moe", "default", {**_ROUTED, "head_dim": 16}, "glm4moe"),
    Case(
        "glm4_moe",
        "odd",
        {
            **_ROUTED,
            **_GROUPS,
            **_TIED,
            "head_dim": 24,
            "num_key_value_heads": 1,
            "use_qk_norm": True,
            "attention_bias": True,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": False,
            "first_k_dense_replace": 0,
        },
        None,
    ),
    Case("glm4_moe_lite", "default", _MLA, "deepseek2"),
    Case(
        "glm4_moe_lite",
        "odd",
        {
            **_MLA,
            **_GROUPS,
            **_TIED,
            "q_lora_rank": None,
            "v_head_dim": 20,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "num_hidden_layers": 3,
            "attention_bias": True,
            "rope_interleave": False,
        },
        None,
    ),
    Case("mistral4", "default", {**_MLA, "rope_parameters": {**MISTRAL_ROPE}}, "mistral4"),
    Case(
        "mistral4",
        "odd",
        {
            **_MLA,
            **_GROUPS,
            **_TIED,
            "v_head_dim": 20,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "rope_parameters": {**MISTRAL_ROPE, "factor": 8.0},
        },
        None,
    ),
    Case(
        "dots1",
        "default",
        {**_ROUTED, "first_k_dense_replace": 1, "head_dim": 16, "num_key_value_heads": 4},
        "dots1",
    ),
    Case(
        "dots1",
        "odd",
        {
            **_ROUTED,
            **_ODD,
            **_TIED,
            "attention_bias": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
        },
        None,
    ),
    Case("lfm2_moe", "default", _LFM2, "lfm2moe"),
    Case(
        "lfm2_moe",
        "odd",
        {
            **_LFM2,
            "tie_word_embeddings": False,
            "conv_bias": True,
            "conv_L_cache": 4,
            "use_expert_bias": False,
            "norm_topk_prob": False,
            "routed_scaling_factor": 2.0,
            "num_dense_layers": 0,
            "num_key_value_heads": 1,
        },
        None,
    ),
    Case(
        "minimax_m2",
        "default",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "partial_rotary_factor": 0.5,
            },
        },
        "minimax-m2",
    ),
    Case(
        "minimax_m2",
        "odd",
        {**_ODD, **_TIED, "num_local_experts": 3, "num_experts_per_tok": 1},
        None,
    ),
    Case("ernie4_5_moe", "default", {**_ERNIE, "head_dim": 16}, "ernie4_5-moe"),
    Case(
        "ernie4_5_moe",
        "odd",
        {
            **_ERNIE,
            "num_key_value_heads": 1,
            "tie_word_embeddings": False,
            "use_bias": True,
            "moe_num_shared_experts": 0,
            "moe_layer_start_index": 0,
            "moe_layer_end_index": 1,
            "moe_layer_interval": 2,
        },
        None,
    ),
    Case(
        "hunyuan_v1_moe",
        "default",
        {"num_experts": 4, "moe_topk": 2, "head_dim": 16},
        "hunyuan-moe",
    ),
    Case(
        "hunyuan_v1_moe",
        "odd",
        {
            **_ODD,
            **_TIED,
            "num_experts": 3,
            "moe_topk": 1,
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
    Case("cohere2_moe", "default", _COHERE, None),
    Case(
        "cohere2_moe",
        "prefix",
        {
            **_COHERE,
            "first_k_dense_replace": 1,
            "prefix_dense_intermediate_size": 40,
            "num_shared_experts": 2,
            "rms_norm_eps": 1e-5,
            "expert_selection_fn": "sigmoid",
        },
        "cohere2moe",
    ),
    Case(
        "cohere2_moe",
        "odd",
        {
            **_COHERE,
            **_ODD,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "num_shared_experts": 1,
            "shared_expert_combination_strategy": "sum",
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": False,
            "logit_scale": 0.5,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "prefix_dense_sliding_window_pattern": 4,
        },
        None,
    ),
    Case("exaone_moe", "default", _EXAONE, "exaone-moe"),
    Case(
        "exaone_moe",
        "odd",
        {
            **_EXAONE,
            **_ODD,
            **_GROUPS,
            **_TIED,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "num_shared_experts": 2,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": False,
        },
        None,
    ),
    Case("exaone_moe", "period", {**_EXAONE, **_ODD, "sliding_window_pattern": 2}, "exaone-moe"),
    Case("solar_open", "default", {**_ROUTED, "head_dim": 16}, "glm4moe"),
    Case(
        "solar_open",
        "odd",
        {
            **_ROUTED,
            **_GROUPS,
            **_ODD,
            **_TIED,
            "attention_bias": True,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 2.0,
                "original_max_position_embeddings": 32,
            },
        },
        None,
    ),
    Case("hy_v3", "default", _HY, "hy_v3"),
    Case("hy_v3", "shared", {**_HY, "num_shared_experts": 2}, "hy_v3"),
    Case(
        "hy_v3",
        "odd",
        {
            **_HY,
            **_ODD,
            **_TIED,
            "num_experts_per_tok": 1,
            "num_shared_experts": 2,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "router_scaling_factor": 1.5,
            "attention_bias": True,
            "mlp_bias": True,
        },
        None,
    ),
    Case("mimo_v2_flash", "default", _MIMO, "mimo2"),
    Case("mimo_v2_flash", "wide", {**_MIMO, "head_dim": 48, "v_head_dim": 32}, "mimo2"),
    Case(
        "mimo_v2_flash",
        "odd",
        {
            **_MIMO,
            **_GROUPS,
            **_TIED,
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "v_head_dim": 28,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
            "attention_bias": True,
            "attention_value_scale": None,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": False,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 5e4,
                    "partial_rotary_factor": 0.5,
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                },
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": 2e4,
                    "partial_rotary_factor": 1.0,
                },
            },
        },
        None,
    ),
)
