"""Falcon: attention and MLP in parallel, in 40B with a norm each, and few or one key head.

Falcon-RW has ALiBi, and one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_alibi_attention, read_attention
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer, Style
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm

DEFAULTS: dict[str, Any] = {
    "new_decoder_architecture": False,
    "multi_query": True,
    "tie_word_embeddings": True,
}
#: The flag that only configs have, and not GGUF files.
_SIGN = "new_decoder_architecture"


def read(config: Config) -> ModelSpec:
    config = usual_config(config)
    norm = read_layer_norm(config)
    attention = read_falcon_attention(config)
    activation = config.activation("gelu", "activation")
    mlp = read_mlp(config, activation=activation, gated=False, bias=attention.out_bias)
    layer = Layer(attention, mlp, norm, style=falcon_style(config))
    return decoder(config, "falcon", [layer] * layer_count(config), norm)


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


NAMES: Mapping[str, str] = {
    "embedding": "transformer.word_embeddings",
    "norm": "transformer.ln_f",
    "layer": "transformer.h.{layer}.",
    # With a norm each, or else one for both or a second one after attention.
    "mixer.norm": "ln_attn",
    "mixer.norm.weight": "input_layernorm.weight",
    "mixer.norm.bias": "input_layernorm.bias",
    "ffn.norm": "ln_mlp",
    "ffn.norm.weight": "post_attention_layernorm.weight",
    "ffn.norm.bias": "post_attention_layernorm.bias",
    "mixer.qkv_by_head": "self_attention.query_key_value",
    "mixer.o": "self_attention.dense",
    "ffn.up": "mlp.dense_h_to_4h",
    "ffn.down": "mlp.dense_4h_to_h",
}


GGUF_NAMES: Mapping[str, str] = {
    "mixer.norm": "attn_norm_2",
    "mixer.norm.weight": "attn_norm.weight",
    "mixer.norm.bias": "attn_norm.bias",
    "ffn.norm": "attn_norm",
}


FAMILY = Family(
    "falcon",
    read,
    gguf_arch="falcon",
    defaults=DEFAULTS,
    safetensors=NAMES,
    gguf=GGUF_NAMES,
)
