"""Tiny models with Mamba 2 layers."""

from __future__ import annotations

from typing import Any

from case import Case

_GRANITE: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 48,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "intermediate_size": 32,
}
_NEMOTRON: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 24,
    "n_groups": 2,
    "n_routed_experts": 4,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    # transformers limits steps in prompts, but not in replies.
    "time_step_min": 1e-6,
}
_NEMOTRON_EXPERTS: dict[str, Any] = {
    **_NEMOTRON,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "moe", "full_attention"],
    "moe_latent_size": 32,
    "routed_scaling_factor": 2.5,
}
_NEMOTRON_MLP: dict[str, Any] = {
    **_NEMOTRON,
    "layer_types": ["mlp", "linear_attention", "full_attention", "mlp"],
}
_FALCON: dict[str, Any] = {
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "key_multiplier": 0.7,
    "mlp_multipliers": [0.8, 1.3],
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.5,
}
_FALCON_NORM: dict[str, Any] = {
    **_FALCON,
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
    "mamba_n_groups": 2,
}
_GRANITE_DENSE: dict[str, Any] = {
    **_GRANITE,
    # As in files of dense models.
    "intermediate_size": 48,
    "num_local_experts": 0,
    "position_embedding_type": "rope",
    "mamba_n_groups": 2,
    "embedding_multiplier": 12.0,
    "logits_scaling": 8.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.2,
}

_MAMBA2: dict[str, Any] = {
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 24,
    "n_groups": 2,
}
_BAMBA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "attn_layer_indices": [1],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
}

MAMBAS: tuple[Case, ...] = (
    Case("mamba2", "default", _MAMBA2, "mamba2"),
    Case(
        "mamba2",
        "odd",
        {
            **_MAMBA2,
            "expand": 3,
            "num_heads": 6,
            "head_dim": 32,
            "n_groups": 1,
            "conv_kernel": 3,
            "use_bias": True,
            "use_conv_bias": False,
            "layer_norm_epsilon": 1e-3,
            "tie_word_embeddings": True,
        },
        None,
    ),
    Case("bamba", "default", _BAMBA, None),
    Case(
        "bamba",
        "odd",
        {
            **_BAMBA,
            "attn_layer_indices": [0, 2],
            "num_key_value_heads": 1,
            "mamba_n_groups": 2,
            "mamba_d_conv": 3,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.75,
            },
        },
        None,
    ),
    Case("nemotron_h", "default", _NEMOTRON, None),
    Case("nemotron_h", "experts", _NEMOTRON_EXPERTS, "nemotron_h_moe"),
    Case("nemotron_h", "mlp", _NEMOTRON_MLP, "nemotron_h"),
    Case(
        "nemotron_h",
        "odd",
        {
            **_NEMOTRON,
            "num_hidden_layers": 5,
            "layer_types": ["moe", "linear_attention", "linear_attention", "full_attention", "mlp"],
            "head_dim": 20,
            "num_key_value_heads": 1,
            "n_groups": 1,
            "conv_kernel": 3,
            "use_conv_bias": False,
            "use_bias": True,
            "mlp_bias": True,
            "moe_latent_size": 32,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": False,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 1,
            "layer_norm_epsilon": 1e-3,
        },
        None,
    ),
    Case("falcon_h1", "default", _FALCON, "falcon-h1"),
    Case("falcon_h1", "norm-last", _FALCON_NORM, "falcon-h1"),
    Case(
        "falcon_h1",
        "odd",
        {
            "head_dim": 20,
            "num_key_value_heads": 1,
            "mamba_d_ssm": None,
            "mamba_expand": 1,
            "mamba_n_heads": 4,
            "mamba_d_state": 24,
            "mamba_n_groups": 2,
            "mamba_d_conv": 3,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-4,
        },
        None,
    ),
    Case(
        "falcon_h1",
        "norm-first",
        {**_FALCON, "mamba_rms_norm": True, "projectors_bias": True, "ssm_multipliers": None},
        None,
    ),
    Case("granitemoehybrid", "default", _GRANITE, "granitehybrid"),
    Case("granitemoehybrid", "dense", _GRANITE_DENSE, "granitehybrid"),
    Case(
        "granitemoehybrid",
        "odd",
        {
            **_GRANITE,
            "layer_types": ["attention", "mamba", "mamba"],
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "mamba_n_groups": 2,
            "mamba_d_conv": 3,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.2,
        },
        None,
    ),
)
_MAMBA: dict[str, Any] = {"state_size": 24, "intermediate_size": 128}
_JAMBA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "attn_layer_period": 3,
    "attn_layer_offset": 0,
    "num_experts": 4,
    "mamba_d_state": 24,
}

FIRST_MAMBAS: tuple[Case, ...] = (
    Case("mamba", "default", _MAMBA, "mamba"),
    Case(
        "mamba",
        "odd",
        {
            "intermediate_size": 72,
            "state_size": 5,
            "time_step_rank": 7,
            "conv_kernel": 3,
            "use_bias": True,
            "use_conv_bias": False,
            "layer_norm_epsilon": 1e-3,
            "tie_word_embeddings": False,
        },
        None,
    ),
    Case("falcon_mamba", "default", {**_MAMBA, "mixer_rms_eps": 1e-5}, "mamba"),
    Case("falcon_mamba", "odd", {**_MAMBA, "mixer_rms_eps": 0.1, "use_bias": True}, None),
    Case("jamba", "default", _JAMBA, "jamba"),
    Case(
        "jamba",
        "odd",
        {
            **_JAMBA,
            "attn_layer_period": 2,
            "attn_layer_offset": 0,
            "expert_layer_period": 3,
            "expert_layer_offset": 2,
            "num_key_value_heads": 1,
            "mamba_expand": 3,
            "mamba_dt_rank": 9,
            "mamba_d_conv": 3,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-3,
        },
        None,
    ),
    Case("jamba", "dense", {**_JAMBA, "num_experts": 1, "num_experts_per_tok": 1}, None),
)
