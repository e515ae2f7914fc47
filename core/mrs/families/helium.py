"""Helium: Llama with interleaved rope, and no bias after attention."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import (
    decoder,
    read_attention,
    read_head_rope,
    read_mlp,
    read_norm,
)


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-8)
    attention = read_attention(
        config,
        rope=read_head_rope(config, default_base=1e5, interleaved=True),
        qkv_bias=config.flag("attention_bias", False),
    )
    layer = Layer(attention, read_mlp(config, bias=config.flag("mlp_bias", False)), norm)
    return decoder(config, "helium", [layer] * layer_count(config), norm)


FAMILY = Family(
    "helium",
    read,
    defaults={
        "rms_norm_eps": 1e-8,
        "head_dim": 128,
        "num_key_value_heads": 20,
        "max_position_embeddings": 4096,
    },
)
