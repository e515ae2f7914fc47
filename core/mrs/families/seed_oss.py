"""Seed-OSS: Llama with biases on q, k and v, and its own head size."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    attention = read_attention(
        config,
        qkv_bias=config.flag("attention_bias", True),
        out_bias=config.flag("attention_out_bias", False),
    )
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    return decoder(config, "seed_oss", [Layer(attention, mlp, norm)] * layer_count(config), norm)


FAMILY = Family(
    "seed_oss",
    read,
    gguf_arch="seed_oss",
    defaults={"num_key_value_heads": 8, "head_dim": 128},
    gguf={"ffn.norm": "post_attention_norm"},
)
