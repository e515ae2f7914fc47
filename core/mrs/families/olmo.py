"""OLMo: Llama with norms that have no weights, and bounded queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    norm = replace(read_layer_norm(config, bias=False), learned=False)
    attention = biased_attention(config, clip=config.optional_number("clip_qkv"))
    layer = Layer(attention, read_mlp(config), norm)
    return decoder(config, "olmo", [layer] * layer_count(config), norm)


FAMILY = Family(
    "olmo",
    read,
    gguf_arch="olmo",
    gguf_keys={"clip_qkv": "attention.clamp_kqv"},
    gguf_rope_interleaved=True,
)
