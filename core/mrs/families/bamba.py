"""Bamba: Mamba 2 in most layers, and attention whose rope turns half of a head in some."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.layers.attention.config import biased_attention, read_head_rope
from mrs.layers.mamba2.config import read_mamba2_mixers
from mrs.layers.mamba2.spec import HYBRID_LAYERS
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


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
