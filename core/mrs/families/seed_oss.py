"""Seed-OSS: Llama with biases on q, k and v, and its own head size."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import decoder, read_attention, read_mlp, read_norm


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
