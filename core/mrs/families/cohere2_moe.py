"""Cohere 2 MoE: Cohere 2 with routed and shared experts after the first layers."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mlp_names import SHARED_EXPERTS, STACKED_EXPERTS
from mrs.architecture.readers.averaged_moe_reader import read_averaged_moe
from mrs.architecture.readers.layer_reader import (
    decoder,
    read_layer_norm,
    read_mlp,
    read_norm,
    stack_layers,
)
from mrs.architecture.readers.moe_reader import mixed_layers
from mrs.architecture.readers.prefix_windows_reader import read_prefix_mixers


def read(config: Config) -> ModelSpec:
    has_rms_norm = config.has("rms_norm_eps")
    norm = read_norm(config) if has_rms_norm else read_layer_norm(config, bias=False)
    mlp = read_mlp(config)
    size = config.positive("prefix_dense_intermediate_size", mlp.intermediate)
    feed_forward = mixed_layers(config, read_averaged_moe(config), replace(mlp, intermediate=size))
    layers = stack_layers(read_prefix_mixers(config), feed_forward, norm, style="parallel")
    scale = config.number("logit_scale", 0.0625)
    return decoder(config, "cohere2_moe", layers, norm, logit_scale=scale)


FAMILY = Family(
    "cohere2_moe",
    read,
    defaults={
        "tie_word_embeddings": True,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_position_embeddings": 8192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    safetensors={**SHARED_EXPERTS, **STACKED_EXPERTS},
)
