"""Jais 2: LayerNorm, biases everywhere, and an MLP of squared ReLU."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import (
    biased_attention,
    decoder,
    read_layer_norm,
    read_relu2_mlp,
)


def read(config: Config) -> ModelSpec:
    norm = read_layer_norm(config)
    layer = Layer(biased_attention(config), read_relu2_mlp(config, bias=True), norm)
    return decoder(config, "jais2", [layer] * layer_count(config), norm)


FAMILY = Family(
    "jais2",
    read,
    gguf_arch="jais2",
    defaults={"attention_bias": True, "max_position_embeddings": 8192},
)
