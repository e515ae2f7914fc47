"""Jais 2: LayerNorm, biases everywhere, and an MLP of squared ReLU."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_relu2_mlp
from mrs.layers.norm.config import read_layer_norm


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
