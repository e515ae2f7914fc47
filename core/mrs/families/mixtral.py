"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count, read_window
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import SPARSE_BLOCK
from mrs.layers.moe.config import read_expert, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    attention = read_attention(config, window=read_window(config))
    layer = Layer(attention, read_moe(config), norm)
    return decoder(config, "mixtral", [layer] * layer_count(config), norm)


def read_moe(config: Config) -> Moe:
    return Moe(read_router(config, norm_topk_prob=True), read_expert(config, "intermediate_size"))


FAMILY = Family(
    "mixtral",
    read,
    defaults={
        "num_local_experts": 8,
        "num_key_value_heads": 8,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-5,
    },
    safetensors=SPARSE_BLOCK,
)
