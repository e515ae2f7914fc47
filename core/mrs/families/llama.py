"""Llama 1 to 3.3 and everything shaped like it."""

from __future__ import annotations

from mrs.families.config import Config
from mrs.families.family import Family
from mrs.families.parts import decoder, layer_count, read_attention, read_mlp, read_norm
from mrs.families.spec import Layer, ModelSpec


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    bias = config.flag("attention_bias", False)
    attention = read_attention(config, qkv_bias=bias, out_bias=bias)
    layer = Layer(attention, read_mlp(config, bias=config.flag("mlp_bias", False)), norm)
    return decoder(config, "llama", [layer] * layer_count(config), norm)


FAMILY = Family("llama", read, gguf_arch="llama", gguf_rope_interleaved=True)
