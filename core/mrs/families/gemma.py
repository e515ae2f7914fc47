"""Gemma 1: tied and scaled embeddings, its own head size, norm weights stored as offsets from 1."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import Unsupported
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    config.allow_only("use_bidirectional_attention", False)
    norm = read_norm(config)
    # The published configs say "gelu", but the models use its tanh approximation.
    if config.activation("gelu", "hidden_activation", "hidden_act") not in ("gelu", "gelu_tanh"):
        raise Unsupported("an activation that is not GELU is not supported", where=config.where)
    mlp = read_mlp(config, activation="gelu_tanh")
    layer = Layer(biased_attention(config), mlp, norm)
    scale = config.positive("hidden_size") ** 0.5
    return decoder(config, "gemma", [layer] * layer_count(config), norm, embedding_scale=scale)


FAMILY = Family(
    "gemma",
    read,
    gguf_arch="gemma",
    defaults={"head_dim": 256, "num_key_value_heads": 16, "tie_word_embeddings": True},
    norm_plus_one="all",
)
