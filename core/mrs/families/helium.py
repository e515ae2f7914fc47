"""Helium: Llama with interleaved rope, and no bias after attention."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention, read_head_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


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
