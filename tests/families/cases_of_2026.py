"""Tiny models of newer families whose layers are those of older ones."""

from __future__ import annotations

from typing import Any

from bailing_model import register
from case import WINDOW, Case

register()  # whoever makes a model of a case needs its type

_TIED = {"tie_word_embeddings": True}
_ODD: dict[str, Any] = {"head_dim": 20, "num_key_value_heads": 1}
_EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
_MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
_ROPE_BY_KIND: dict[str, Any] = {
    "full_attention": {
        "rope_type": "yarn",
        "rope_theta": 5e5,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
}
#: GGUF files have one base.
_ONE_BASE = {kind: {**rope, "rope_theta": 2e4} for kind, rope in _ROPE_BY_KIND.items()}
_MELLUM: dict[str, Any] = {
    **_EXPERTS,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "num_experts": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_LING: dict[str, Any] = {**_EXPERTS, "head_dim": 16, "n_routed_experts": 8}

MELLUM: tuple[Case, ...] = (
    Case("mellum", "default", {**_MELLUM, "rope_parameters": _ONE_BASE}, "mellum"),
    Case(
        "mellum",
        "odd",
        {
            **_MELLUM,
            **_ODD,
            **_TIED,
            "attention_bias": True,
            "norm_topk_prob": False,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "rope_parameters": _ROPE_BY_KIND,
        },
        None,
    ),
)
YOUTU: tuple[Case, ...] = (
    Case("youtu", "default", _MLA, "deepseek2"),
    Case(
        "youtu",
        "odd",
        {
            **_MLA,
            "q_lora_rank": None,
            "v_head_dim": 20,
            "attention_bias": True,
            "rope_interleave": False,
            "tie_word_embeddings": False,
        },
        None,
    ),
)
SARVAM: tuple[Case, ...] = (
    Case("sarvam_moe", "default", _LING, "bailingmoe2"),
    Case(
        "sarvam_moe",
        "odd",
        {
            **_LING,
            **_ODD,
            **_TIED,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "use_qk_norm": False,
            "attention_bias": True,
            "norm_topk_prob": False,
            "first_k_dense_replace": 0,
        },
        None,
    ),
    Case("sarvam_mla", "default", {**_MLA, **_EXPERTS, "n_routed_experts": 8}, "deepseek2"),
    Case(
        "sarvam_mla",
        "odd",
        {
            **_MLA,
            **_EXPERTS,
            **_TIED,
            "n_routed_experts": 6,
            "q_lora_rank": None,
            "v_head_dim": 20,
            "n_group": 3,
            "topk_group": 2,
            "first_k_dense_replace": 0,
            "norm_topk_prob": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 40.0,
                "original_max_position_embeddings": 64,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
        None,
    ),
)
LING: tuple[Case, ...] = (
    Case("bailing_moe_v2", "default", {**_LING, "n_routed_experts": 16}, "bailingmoe2"),
    Case(
        "bailing_moe_v2",
        "odd",
        {
            **_LING,
            **_ODD,
            **_TIED,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 2,
            "partial_rotary_factor": 0.2,
        },
        None,
    ),
)
_AX: dict[str, Any] = {**_MLA, **_EXPERTS, "n_routed_experts": 8, "num_hidden_layers": 3}
AX: tuple[Case, ...] = (
    Case("axk1", "default", {**_AX, "n_group": 4, "topk_group": 2}, None),
    Case(
        "axk1",
        "odd",
        {
            **_AX,
            **_TIED,
            "q_lora_rank": 20,
            "v_head_dim": 20,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "rope_interleave": False,
            "attention_bias": True,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
        None,
    ),
)
HYPERCLOVAX: tuple[Case, ...] = (
    Case("hyperclovax", "default", {}, None),
    Case(
        "hyperclovax",
        "odd",
        {
            "head_dim": 20,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "embedding_multiplier": 12.0,
            "logits_scaling": 0.125,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.1,
        },
        None,
    ),
    Case("hyperclovax", "pre-norms", {"use_post_norm": False}, None),
)
FLEX_OLMO: tuple[Case, ...] = (
    Case("flex_olmo", "default", {"num_experts": 4, "num_experts_per_tok": 2}, None),
    Case(
        "flex_olmo",
        "odd",
        {
            **_TIED,
            "hidden_size": 72,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "num_experts": 3,
            "num_experts_per_tok": 1,
            "norm_topk_prob": True,
            "attention_bias": True,
            "rms_norm_eps": 1e-5,
        },
        None,
    ),
)

OF_2026: tuple[Case, ...] = (*MELLUM, *YOUTU, *SARVAM, *LING, *AX, *HYPERCLOVAX, *FLEX_OLMO)
