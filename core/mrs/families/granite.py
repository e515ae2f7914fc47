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
    layers = [layer] * layer_count(config)
    return decoder(config, "granite", layers, norm, **read_multipliers(config))


def read_multipliers(config: Config) -> dict[str, float]:
    """The factors of embeddings and logits."""
    return {
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "logit_scale": 1 / config.positive_number("logits_scaling", 1.0),
    }


GGUF_KEYS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


FAMILY = Family(
    "granite",
    read,
    gguf_arch="granite",
    defaults={"attention_multiplier": 1.0},
    gguf_keys=GGUF_KEYS,
    gguf_rope_interleaved=True,
)
