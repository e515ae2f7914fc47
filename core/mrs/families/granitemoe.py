"""Granite 3 MoE: Granite with experts in place of the MLP, and in some sizes a shared one."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mlp_names import GRANITE_MOE
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import decoder, read_norm
from mrs.architecture.readers.multipliers_reader import (
    MULTIPLIERS_GGUF_KEYS,
    read_multipliers,
    read_scaled_attention,
    stack_scaled_layers,
)
from mrs.architecture.readers.wide_moe_reader import read_wide_moe


def read(config: Config) -> ModelSpec:
    norm, mixers = read_norm(config), [read_scaled_attention(config)] * layer_count(config)
    layers = stack_scaled_layers(config, mixers, read_wide_moe(config), norm)
    return decoder(config, "granitemoe", layers, norm, **read_multipliers(config))


DEFAULTS = {"attention_multiplier": 1.0, "num_local_experts": 8}

FAMILY = Family(
    "granitemoe",
    read,
    gguf_arch="granitemoe",
    aliases=("granitemoeshared",),
    defaults=DEFAULTS,
    safetensors=GRANITE_MOE,
    gguf_keys={
        **MULTIPLIERS_GGUF_KEYS,
        "shared_intermediate_size": "expert_shared_feed_forward_length",
    },
    gguf_rope_interleaved=True,
)
