"""Granite 4: Granite with Mamba 2 in most layers, and in some sizes with experts."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families import granitemoe
from mrs.families.granite import (
    MULTIPLIERS_GGUF_KEYS,
    read_multipliers,
    read_scaled_attention,
    stack_scaled_layers,
)
from mrs.layers.attention.config import read_head_rope
from mrs.layers.mamba2.config import MAMBA2_GGUF_KEYS, read_mamba2_mixers
from mrs.layers.mamba2.spec import GGUF_MAMBA2, mamba2_names
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    is_rotated = config.values.get("position_embedding_type") == "rope"
    has_rope = is_rotated or config.flag("rope_finetuned", False)
    rope = read_head_rope(config) if has_rope else None
    norm, attention = read_norm(config), read_scaled_attention(config, rope=rope)
    mixers = read_mamba2_mixers(config, attention, norm)
    layers = stack_scaled_layers(config, mixers, granitemoe.read_wide_moe(config), norm)
    return decoder(config, "granitemoehybrid", layers, norm, **read_multipliers(config))


FAMILY = Family(
    "granitemoehybrid",
    read,
    gguf_arch="granitehybrid",
    defaults={
        "attention_multiplier": 1.0,
        "num_local_experts": 8,
        "shared_intermediate_size": 1024,
        "mamba_n_heads": 128,
        "mamba_d_state": 256,
    },
    safetensors={
        **mamba2_names("mamba"),
        **granitemoe.linear_mlp_names("ffn", "shared_mlp"),
        **granitemoe.NAMES,
    },
    gguf=GGUF_MAMBA2,
    gguf_keys={
        **MULTIPLIERS_GGUF_KEYS,
        **MAMBA2_GGUF_KEYS,
        "shared_intermediate_size": "expert_shared_feed_forward_length",
    },
    gguf_defaults={"rope_finetuned": True},
    gguf_rope_interleaved=True,
)
