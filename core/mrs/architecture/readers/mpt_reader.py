"""Read MPT's config, which has the settings of attention in an object of their own."""

from __future__ import annotations

from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.readers.alibi_reader import read_alibi_attention, with_derived_sizes
from mrs.architecture.readers.layer_reader import read_heads

MPT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50_368,
    "d_model": 2048,
    "n_heads": 16,
    "n_layers": 24,
    "max_seq_len": 2048,
    "tie_word_embeddings": True,
}
_KEYS = {
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "max_seq_len": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}


def usual_config(config: Config) -> Config:
    """The config under the usual keys, those of attention among them."""
    if not config.has("d_model"):  # from a GGUF file
        return config
    config.allow_only("expansion_ratio", 4)
    config.allow_only("no_bias", True)
    config.allow_only("embedding_fraction", 1)
    config.allow_only("logit_scale")
    inner = Config(config.mapping("attn_config"), config.where)
    inner.allow_only("attn_type", "multihead_attention")
    inner.allow_only("alibi", True)
    inner.require_off("prefix_lm", "qk_ln")
    return with_derived_sizes(config.renamed(_KEYS).changed(inner.values))


def read_mpt_attention(config: Config) -> Attention:
    largest = config.positive_number("alibi_bias_max", 8)
    scale = config.positive_number("softmax_scale", read_heads(config)[2] ** -0.5)
    clip = config.optional_number("clip_qkv")
    return read_alibi_attention(config, largest, clip=clip, scale=scale)
