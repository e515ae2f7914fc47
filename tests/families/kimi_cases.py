"""Tiny models of Kimi Linear."""

from __future__ import annotations

from typing import Any

from case import Case

_KIMI: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "linear_num_heads": 3,
    "linear_head_dim": 16,
}

KIMI: tuple[Case, ...] = (
    Case("kimi_linear", "default", _KIMI, None),
    Case("kimi_linear", "as-many-heads", {**_KIMI, "linear_num_heads": 4}, "kimi-linear"),
    Case(
        "kimi_linear",
        "odd",
        {
            **_KIMI,
            "num_hidden_layers": 5,
            "layer_types": None,
            "mlp_layer_types": ["sparse", "dense", "dense", "dense", "sparse"],
            "q_lora_rank": 24,
            "kv_lora_rank": 20,
            "attention_bias": True,
            "n_shared_experts": 2,
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.5,
            "linear_num_heads": 2,
            "linear_head_dim": 24,
            "linear_conv_kernel_dim": 3,
            "rms_norm_eps": 1e-4,
        },
        None,
    ),
)
