"""OLMo: Llama with norms that have no weights, and bounded queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import (
    biased_attention,
    decoder,
    read_layer_norm,
    read_mlp,
)


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
