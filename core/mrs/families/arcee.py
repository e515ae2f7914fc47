"""Arcee's AFM: Llama with an MLP without gate, whose activation is the square of ReLU."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import (
    biased_attention,
    decoder,
    read_norm,
    read_relu2_mlp,
)


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    layer = Layer(biased_attention(config), read_relu2_mlp(config, bias=False), norm)
    return decoder(config, "arcee", [layer] * layer_count(config), norm)


FAMILY = Family(
    "arcee",
    read,
    gguf_arch="arcee",
    defaults={"rms_norm_eps": 1e-5},
    gguf_rope_interleaved=True,
)
