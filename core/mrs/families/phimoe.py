"""Phi 3.5 MoE: LayerNorm, biases, longrope, and a SparseMixer router."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count, read_window
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import SPARSE_BLOCK
from mrs.layers.moe.config import read_expert, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    config.allow_only("num_experts_per_tok", 2)  # SparseMixer is for two
    norm = read_layer_norm(config, "rms_norm_eps")
    attention = biased_attention(config, window=read_window(config))
    router = read_router(
        config,
        scoring="sparsemixer",
        jitter=config.number("router_jitter_noise", 0.01),
    )
    layer = Layer(attention, Moe(router, read_expert(config, "intermediate_size")), norm)
    head_bias = config.flag("lm_head_bias", False)
    return decoder(config, "phimoe", [layer] * layer_count(config), norm, head_bias=head_bias)


FAMILY = Family(
    "phimoe",
    read,
    gguf_arch="phimoe",
    aliases=("phi3.5moe",),
    defaults={
        "num_local_experts": 16,
        "num_key_value_heads": 8,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-5,
    },
    safetensors=SPARSE_BLOCK,
)
