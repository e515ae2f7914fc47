"""Granite 3: Llama with multipliers for embeddings, attention scores, residuals and logits."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import decoder, read_mlp, read_norm
from mrs.architecture.readers.multipliers_reader import (
    MULTIPLIERS_GGUF_KEYS,
    read_multipliers,
    read_scaled_attention,
    stack_scaled_layers,
)


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config), read_mlp(config, bias=config.flag("mlp_bias", False))
    mixers = [read_scaled_attention(config)] * layer_count(config)
    layers = stack_scaled_layers(config, mixers, mlp, norm)
    return decoder(config, "granite", layers, norm, **read_multipliers(config))


FAMILY = Family(
    "granite",
    read,
    gguf_arch="granite",
    defaults={"attention_multiplier": 1.0},
    gguf_keys=MULTIPLIERS_GGUF_KEYS,
    gguf_rope_interleaved=True,
)
