"""Mistral: Llama with an optional sliding window and its own head size."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count, read_window
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    attention = read_attention(config, window=read_window(config))
    layer = Layer(attention, read_mlp(config), norm)
    return decoder(config, "mistral", [layer] * layer_count(config), norm)


FAMILY = Family(
    "mistral",
    read,
    gguf_rope_interleaved=True,
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
)
