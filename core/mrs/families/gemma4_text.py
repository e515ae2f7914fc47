"""Gemma 4, text: heads of other sizes in full layers, whose values may be their keys.

In small sizes the last layers share keys and values, and each layer has an embedding.
"""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.mixers.shared_attention_spec import SharedAttention
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mlp_names import SANDWICH_MOE
from mrs.architecture.readers.layer_reader import read_norm
from mrs.architecture.readers.mlp_and_moe_reader import read_mlp_and_moe
from mrs.architecture.readers.shared_layers_reader import per_layer_decoder, share_kv
from mrs.architecture.readers.wide_heads_reader import (
    WIDE_HEADS_GGUF_KEYS,
    read_wide_heads,
    usual_config,
)


def read(config: Config) -> ModelSpec:
    return read_gemma4(config, "gemma4_text")


def read_gemma4(config: Config, family: str) -> ModelSpec:
    config.allow_only("use_bidirectional_attention", "vision", False)
    config = usual_config(config)
    mixers, norm = share_kv(config, read_wide_heads(config)), read_norm(config)
    feed_forward = [
        read_mlp_and_moe(config, is_wide=isinstance(mixer, SharedAttention)) for mixer in mixers
    ]
    return per_layer_decoder(config, family, mixers, feed_forward, norm, output_scale=True)


DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "sliding_window": 512,
}
PER_LAYER = {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144}

FAMILY = Family(
    "gemma4_text",
    read,
    gguf_arch="gemma4",
    aliases=("gemma4",),
    defaults={**DEFAULTS, **PER_LAYER},
    safetensors=SANDWICH_MOE,
    gguf_keys=WIDE_HEADS_GGUF_KEYS,
)
