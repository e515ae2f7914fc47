"""Tiny models of families of the first years: other norms, biases and positions."""

from __future__ import annotations

from case import Case

_TIED = {"tie_word_embeddings": True}
_ODD_HEADS = {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 1}
_OLMOE = {"num_experts": 4, "num_experts_per_tok": 2}

OLDER: tuple[Case, ...] = (
    Case("olmo", "default", {}, "olmo"),
    Case("olmo", "clipped", {**_TIED, "clip_qkv": 0.2}, "olmo"),
    Case("olmo", "odd", {**_ODD_HEADS, "clip_qkv": 0.3, "attention_bias": True}, None),
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
