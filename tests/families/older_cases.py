"""Tiny models of families of the first years: other norms, biases and positions."""

from __future__ import annotations

from case import WINDOW, Case

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
_LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}
_BIASED = {"attention_bias": True, "mlp_bias": True}
_MIXED = {
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "num_hidden_layers": 3,
    "sliding_window": WINDOW,
}
_BOS = {"bos_token_id": 0}
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
    Case("nemotron", "default", {"hidden_act": "relu2"}, "nemotron"),
    Case(
        "nemotron",
        "odd",
        {**_ODD, **_PART, **_TIED, **_BIASED, "norm_eps": 0.1, "hidden_act": "gelu"},
        None,
    ),
    Case("jais2", "default", {}, "jais2"),
    Case("jais2", "odd", {**_ODD_HEADS, **_TIED, "attention_bias": False, "mlp_bias": False}, None),
    Case("internlm3", "default", {"head_dim": 16}, "llama"),
    Case("internlm3", "odd", {**_ODD, **_TIED, **_BIASED}, None),
    Case("ministral", "default", {"head_dim": 16, "sliding_window": WINDOW}, None),
    Case("ministral", "odd", {**_ODD, **_TIED, **_MIXED}, None),
    Case(
        "cwm",
        "default",
        {**_BOS, "head_dim": 16, "sliding_window": WINDOW, "num_hidden_layers": 5},
        None,
    ),
    Case("cwm", "odd", {**_BOS, **_ODD, **_TIED, **_MIXED, **_LINEAR, "mlp_bias": True}, None),
    Case("helium", "default", {"head_dim": 16}, None),
    Case("helium", "odd", {**_ODD_HEADS, **_TIED, **_BIASED, "head_dim": 12}, None),
    Case("nanochat", "default", {}, None),
    Case(
        "nanochat",
        "odd",
        {**_ODD_HEADS, **_TIED, "attention_bias": True, "final_logit_softcapping": None},
        None,
    ),
)
