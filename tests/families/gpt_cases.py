"""Tiny models of the families that followed GPT-2."""

from __future__ import annotations

from typing import Any

from case import Case

_TIED = {"tie_word_embeddings": True}
_UNTIED = {"tie_word_embeddings": False}
#: What the test writer of GGUF files reads, and these classes derive from other keys.
_WIDE = {"num_key_value_heads": 4, "intermediate_size": 256}
_ODD_HEADS = {"num_key_value_heads": 6, "num_attention_heads": 6, "hidden_size": 72}
_GPT2: dict[str, Any] = {
    **_WIDE,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 96,
}
_GPT2_ODD: dict[str, Any] = {
    "n_embd": 72,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 80,
    "n_inner": 100,
    "layer_norm_epsilon": 0.1,
}
_MPT: dict[str, Any] = {
    **_WIDE,
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 512,
    "use_cache": True,
}
_FALCON_40B: dict[str, Any] = {
    "new_decoder_architecture": True,
    "num_kv_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
}

GPTS: tuple[Case, ...] = (
    Case("gpt_neox", "default", {"num_key_value_heads": 4}, "gptneox"),
    Case(
        "gpt_neox",
        "sequential",
        {"num_key_value_heads": 4, "use_parallel_residual": False},
        "gptneox",
    ),
    Case(
        "gpt_neox",
        "odd",
        {
            **_ODD_HEADS,
            **_TIED,
            "attention_bias": False,
            "hidden_act": "gelu_fast",
            "layer_norm_eps": 0.1,
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 500.0,
                "factor": 2.0,
                "partial_rotary_factor": 1.0,
            },
        },
        None,
    ),
    Case("gpt2", "default", _GPT2, "gpt2"),
    Case("gpt2", "odd", {**_GPT2_ODD, **_UNTIED, "activation_function": "relu"}, None),
    Case("gpt2", "by-depth", {**_GPT2, "scale_attn_by_inverse_layer_idx": True}, None),
    Case(
        "gpt2",
        "unscaled",
        {**_GPT2, "scale_attn_weights": False, "reorder_and_upcast_attn": True, "n_layer": 3},
        None,
    ),
    Case("gpt_bigcode", "default", {**_GPT2, "num_key_value_heads": 1}, "starcoder"),
    Case("gpt_bigcode", "odd", {**_GPT2_ODD, **_UNTIED, "multi_query": False}, None),
    Case("gptj", "default", {**_GPT2, "rotary_dim": 8}, None),
    Case("gptj", "odd", {**_GPT2_ODD, **_TIED, "rotary_dim": 12}, None),
    Case("opt", "default", {"num_key_value_heads": 4, "ffn_dim": 96, "init_std": 0.08}, None),
    Case(
        "opt",
        "odd",
        {
            **_ODD_HEADS,
            **_UNTIED,
            "ffn_dim": 100,
            "init_std": 0.08,
            "enable_bias": False,
            "max_position_embeddings": 80,
            "activation_function": "gelu",
        },
        None,
    ),
    Case(
        "opt",
        "350m",
        {
            "num_key_value_heads": 4,
            "ffn_dim": 96,
            "init_std": 0.08,
            "word_embed_proj_dim": 48,
            "do_layer_norm_before": False,
        },
        None,
    ),
    Case(
        "opt",
        "narrow",
        {
            **_UNTIED,
            "num_key_value_heads": 4,
            "ffn_dim": 96,
            "init_std": 0.08,
            "word_embed_proj_dim": 32,
            "layer_norm_elementwise_affine": False,
            "_remove_final_layer_norm": True,
        },
        None,
    ),
    Case("falcon", "default", {**_WIDE, "num_key_value_heads": 1}, "falcon"),
    Case("falcon", "two-norms", _FALCON_40B, "falcon"),
    Case(
        "falcon",
        "one-norm",
        {**_FALCON_40B, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 96, "bias": True},
        None,
    ),
    Case(
        "falcon",
        "odd",
        {
            "hidden_size": 72,
            "num_attention_heads": 6,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            "layer_norm_epsilon": 0.1,
            "activation": "gelu_new",
            **_UNTIED,
        },
        None,
    ),
    Case(
        "falcon",
        "rw",
        {**_WIDE, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
        None,
    ),
    Case("falcon", "alibi-one-key-head", {**_WIDE, "alibi": True}, None),
    Case("falcon", "alibi-two-norms", {**_FALCON_40B, "alibi": True}, None),
    Case("bloom", "default", {**_WIDE, "n_layer": 2, "n_head": 4}, "bloom"),
    Case(
        "bloom",
        "odd",
        {**_ODD_HEADS, **_UNTIED, "intermediate_size": 288, "layer_norm_epsilon": 0.1},
        "bloom",
    ),
    Case("mpt", "default", _MPT, "mpt"),
    Case(
        "mpt",
        "odd",
        {
            **_MPT,
            **_UNTIED,
            "d_model": 72,
            "n_heads": 6,
            "layer_norm_epsilon": 0.1,
            "attn_config": {"clip_qkv": 0.4, "softmax_scale": 0.4},
        },
        None,
    ),
    Case("mpt", "clipped", {**_MPT, "attn_config": {"clip_qkv": 0.4}}, "mpt"),
)
