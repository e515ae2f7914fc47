"""Ministral 3 and Devstral 2: Mistral with scaled rope, and queries that grow with position."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count, read_window
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.rope.config import read_query_scale, with_default_rope


def read(config: Config) -> ModelSpec:
    config = with_default_rope(config, DEFAULT_ROPE)
    norm = read_norm(config, default=1e-5)
    attention = read_attention(
        config, window=read_window(config), query_scale=read_query_scale(config)
    )
    layer = Layer(attention, read_mlp(config), norm)
    return decoder(config, "ministral3", [layer] * layer_count(config), norm)


DEFAULT_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}

FAMILY = Family(
    "ministral3",
    read,
    gguf_arch="mistral3",
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128},
    gguf_keys={"llama_4_scaling_beta": "attention.temperature_scale"},
    gguf_rope_interleaved=True,
)
