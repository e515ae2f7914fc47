"""Falcon-H1: attention and Mamba 2 in parallel in each layer, and fixed factors everywhere."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mamba2_names import GGUF_MAMBA2, HYBRID_LAYERS
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import decoder, read_norm
from mrs.architecture.readers.mamba2_reader import MAMBA2_GGUF_KEYS
from mrs.architecture.readers.scaled_parts_reader import read_scaled_mixers, read_scaled_mlp


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    layer = Layer(read_scaled_mixers(config, norm), read_scaled_mlp(config), norm)
    return decoder(
        config,
        "falcon_h1",
        [layer] * layer_count(config),
        norm,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logit_scale=config.number("lm_head_multiplier", 1.0),
    )


FAMILY = Family(
    "falcon_h1",
    read,
    gguf_arch="falcon-h1",
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 128,
        "mamba_d_state": 256,
    },
    safetensors=HYBRID_LAYERS,
    # GGUF files have all factors in their weights.
    gguf={**GGUF_MAMBA2, "ffn.norm.weight": "ffn_norm"},
    gguf_keys=MAMBA2_GGUF_KEYS,
    gguf_defaults={"mamba_norm_before_gate": False},
)
