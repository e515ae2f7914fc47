"""Tiny models of families of the first years: other norms, biases and positions."""

from __future__ import annotations

from case import Case

_TIED = {"tie_word_embeddings": True}
_ODD_HEADS = {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 1}
_UNTIED = {"tie_word_embeddings": False}
_ODD = {"head_dim": 20, "num_key_value_heads": 1}
_PART = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.4,
    },
}
_OLMOE = {"num_experts": 4, "num_experts_per_tok": 2}

OLDER: tuple[Case, ...] = (
    Case("olmo", "default", {}, "olmo"),
    Case("olmo", "clipped", {**_TIED, "clip_qkv": 0.2}, "olmo"),
    Case("olmo", "odd", {**_ODD_HEADS, "clip_qkv": 0.3, "attention_bias": True}, None),
    Case("glm", "default", {"head_dim": 16}, "chatglm"),
    Case("glm", "odd", {**_PART, **_ODD, **_TIED, "attention_bias": False}, None),
    Case("cohere", "default", {}, "command-r"),
    Case(
        "cohere",
        "odd",
        {**_ODD_HEADS, **_UNTIED, "attention_bias": True, "logit_scale": 0.5},
        None,
    ),
    Case("cohere", "norms", {"use_qk_norm": True, "layer_norm_eps": 0.1}, "command-r"),
    Case("stablelm", "default", {}, "stablelm"),
    Case(
        "stablelm",
        "norms",
        {
            "qk_layernorm": True,
            "use_parallel_residual": True,
            "use_qkv_bias": True,
            "layer_norm_eps": 0.1,
        },
        "stablelm",
    ),
    Case("stablelm", "odd", {**_ODD_HEADS, **_PART, **_TIED, "qk_layernorm": True}, "stablelm"),
    Case("olmoe", "default", _OLMOE, "olmoe"),
    Case(
        "olmoe",
        "odd",
        {
            **_OLMOE,
            **_ODD_HEADS,
            **_TIED,
            "num_experts": 3,
            "attention_bias": True,
            "clip_qkv": 0.5,
            "norm_topk_prob": True,
        },
        None,
    ),
)
