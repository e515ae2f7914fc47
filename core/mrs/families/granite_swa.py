"""Granite SWA: Granite with attention sinks, windows, and a base of rope for each layer."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.mixers.mixer import FeedForward
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import decoder, read_mlp, read_norm
from mrs.architecture.readers.layered_rope_reader import read_layered_rope
from mrs.architecture.readers.multipliers_reader import (
    read_multipliers,
    read_scaled_attention,
    stack_scaled_layers,
)


def read(config: Config) -> ModelSpec:
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    return read_windowed_granite(config, "granite_swa", mlp)


def read_windowed_granite(config: Config, family: str, feed_forward: FeedForward) -> ModelSpec:
    """Layers with this feed-forward network."""
    norm = read_norm(config)
    mixers = [
        read_scaled_attention(config, rope=rope, window=window, sinks=True)
        for rope, window in read_layered_rope(config)
    ]
    layers = stack_scaled_layers(config, mixers, feed_forward, norm)
    return decoder(config, family, layers, norm, **read_multipliers(config))


FAMILY = Family(
    "granite_swa",
    read,
    defaults={
        "attention_multiplier": 1.0,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "sliding_window": 128,
        "max_position_embeddings": 8192,
    },
)
