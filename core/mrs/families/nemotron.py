"""Nemotron and Minitron: LayerNorm, rope on half of each head, and an MLP of squared ReLU."""

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
    norm = read_layer_norm(config, "norm_eps")
    layer = Layer(biased_attention(config), read_relu2_mlp(config, bias=False), norm)
    return decoder(config, "nemotron", [layer] * layer_count(config), norm)


FAMILY = Family(
    "nemotron",
    read,
    gguf_arch="nemotron",
    defaults={"partial_rotary_factor": 0.5, "max_position_embeddings": 4096},
    gguf_keys={"norm_eps": "attention.layer_norm_epsilon"},
    norm_plus_one="all",
)
