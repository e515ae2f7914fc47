"""Llama 1 to 3.3, and models with the same architecture."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import biased_attention, decoder, read_mlp, read_norm
from mrs.architecture.readers.moe_reader import expert_count
from mrs.families.mixtral import read_moe


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    attention = biased_attention(config)
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    # The architecture of Mixtral in GGUF files is `llama` too.
    layer = Layer(attention, read_moe(config) if expert_count(config) else mlp, norm)
    return decoder(config, "llama", [layer] * layer_count(config), norm)


FAMILY = Family("llama", read, gguf_arch="llama", gguf_rope_interleaved=True)
