"""Arcee's AFM: Llama with an MLP without gate, whose activation is the square of ReLU."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_relu2_mlp
from mrs.layers.norm.config import read_norm


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
