"""Read Falcon's config, whose flags say how many key heads and norms a layer has."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.layers import Style
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.readers.alibi_reader import read_alibi_attention
from mrs.architecture.readers.layer_reader import read_attention

FALCON_DEFAULTS: dict[str, Any] = {
    "new_decoder_architecture": False,
    "multi_query": True,
    "tie_word_embeddings": True,
}
#: The flag that only configs have, and not GGUF files.
_SIGN = "new_decoder_architecture"


def usual_config(config: Config) -> Config:
    """The config under the usual keys."""
    if not config.has(_SIGN):
        return config
    heads = config.positive("num_attention_heads")
    has_one = config.flag("multi_query") and not config.flag(_SIGN)
    return config.renamed({"layer_norm_epsilon": "layer_norm_eps"}).changed(
        {
            "head_dim": None,
            "num_key_value_heads": 1 if has_one else config.positive("num_kv_heads", heads),
            "intermediate_size": config.positive(
                "ffn_hidden_size", 4 * config.positive("hidden_size")
            ),
        }
    )


def read_falcon_attention(config: Config) -> Attention:
    """Attention with rope; or with ALiBi, whose slopes are bf16 and are scaled as scores are."""
    bias = config.flag(config.spelling("bias", "attention_bias"), False)
    biases = {"qkv_bias": bias, "out_bias": bias}
    if not config.flag("alibi", False):
        return read_attention(config, **biases)
    attention = read_alibi_attention(config, **biases)
    slopes = tuple(rounded_to_bf16(slope) * attention.scale for slope in attention.alibi)
    return replace(attention, alibi=slopes)


def rounded_to_bf16(value: float) -> float:
    """The nearest number with 8 bits, for one that is exact in no other way."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)


def falcon_style(config: Config) -> Style:
    """How a layer adds up attention and MLP."""
    if config.flag("has_second_norm", False):  # of a GGUF file
        return "parallel_norms"
    is_new = config.flag(_SIGN, False)
    norms = config.positive("num_ln_in_parallel_attn", 2 if is_new else 1)
    config.allow_only("num_ln_in_parallel_attn", *((1, 2) if is_new else (1,)))
    if not config.flag("parallel_attn", True):
        config.require_off(_SIGN)
        return "pre"
    return "parallel_norms" if norms > 1 else "parallel"
