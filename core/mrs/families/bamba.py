"""Bamba: Mamba 2 in most layers, and attention whose rope turns half of a head in some."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mamba2_names import HYBRID_LAYERS
from mrs.architecture.readers.layer_reader import (
    biased_attention,
    decoder,
    read_head_rope,
    read_mlp,
    read_norm,
    stack_layers,
)
from mrs.architecture.readers.mamba2_reader import read_mamba2_mixers


def read(config: Config) -> ModelSpec:
    config.allow_only("hidden_act", "silu", "swish")
    norm, rope = read_norm(config, default=1e-5), read_head_rope(config)
    config.allow_only("attn_rotary_emb", rope.dim)  # in published files
    mixers = read_mamba2_mixers(config, biased_attention(config, rope=rope), norm)
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    return decoder(config, "bamba", stack_layers(mixers, [mlp] * len(mixers), norm), norm)


FAMILY = Family(
    "bamba",
    read,
    # GGUF files are of Granite 4's architecture, whose family reads them.
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 262_144,
        "partial_rotary_factor": 0.5,
        "mamba_n_heads": 128,
        "mamba_d_state": 256,
    },
    safetensors=HYBRID_LAYERS,
)
