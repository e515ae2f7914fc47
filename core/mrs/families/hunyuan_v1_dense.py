"""Hunyuan dense: Llama with a norm on every head after rope."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    layer = Layer(read_normed_attention(config), read_mlp(config), norm)
    return decoder(config, "hunyuan_v1_dense", [layer] * layer_count(config), norm)


def read_normed_attention(config: Config) -> Attention:
    return biased_attention(
        config,
        qk_norm=read_norm(config, default=1e-5),
        qk_norm_after_rope=True,
    )


NAMES = {
    "mixer.q_norm": "self_attn.query_layernorm",
    "mixer.k_norm": "self_attn.key_layernorm",
}

FAMILY = Family(
    "hunyuan_v1_dense",
    read,
    gguf_arch="hunyuan-dense",
    defaults={"rms_norm_eps": 1e-5},
    safetensors=NAMES,
)
