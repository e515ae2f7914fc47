"""Granite 3: Llama with multipliers for embeddings, attention scores, residuals and logits."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    read_attention,
    read_heads,
    read_mlp,
    read_norm,
)


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    bias = config.flag("attention_bias", False)
    scale = config.number("attention_multiplier", read_heads(config)[2] ** -0.5)
    layer = Layer(
        read_attention(config, scale=scale, qkv_bias=bias, out_bias=bias),
        read_mlp(config, bias=config.flag("mlp_bias", False)),
        norm,
        residual_scale=config.number("residual_multiplier", 1.0),
    )
    return decoder(
        config,
        "granite",
        [layer] * layer_count(config),
        norm,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logit_scale=1 / config.positive_number("logits_scaling", 1.0),
    )


FAMILY = Family(
    "granite",
    read,
    gguf_arch="granite",
    defaults={"attention_multiplier": 1.0},
    gguf_keys={
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    },
    gguf_rope_interleaved=True,
)
