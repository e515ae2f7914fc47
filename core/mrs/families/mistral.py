"""Mistral: Llama with an optional sliding window and its own head size."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count, read_window
from mrs.architecture.readers.layer_reader import decoder, read_attention, read_mlp, read_norm


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
