"""Ministral (8B of 2024): Mistral with windows in some layers."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import windows
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config), read_mlp(config)
    layers = [Layer(read_attention(config, window=window), mlp, norm) for window in windows(config)]
    return decoder(config, "ministral", layers, norm)


FAMILY = Family(
    "ministral",
    read,
    defaults={
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "max_position_embeddings": 131_072,
    },
)
