"""Apertus: QK norm, and an MLP without gate whose activation has learned numbers in each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mlp_spec import Activation, Mlp
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    read_attention,
    read_heads,
    read_norm,
)
from mrs.architecture.readers.rope_reader import read_rope, with_default_rope

XIELU_KEYS = ("xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps")
DEFAULT_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def read(config: Config) -> ModelSpec:
    # GGUF files have the base, and factors as a tensor.
    if not config.has("rope_theta"):
        config = with_default_rope(config, DEFAULT_ROPE)
    norm, bias = read_norm(config, default=1e-5), config.flag("attention_bias", False)
    rope = read_rope(config, read_heads(config)[2], default_base=12e6)
    attention = read_attention(config, rope=rope, qk_norm=norm, qkv_bias=bias, out_bias=bias)
    mlp = Mlp(config.positive("intermediate_size"), _read_activation(config), gated=False)
    mlps = [replace(mlp, xielu_values=values) for values in _xielu_values(config)]
    return decoder(config, "apertus", [Layer(attention, each, norm) for each in mlps], norm)


def _xielu_values(config: Config) -> Sequence[tuple[float, ...]]:
    """The numbers of each layer's activation in GGUF files; () in others, which have tensors."""
    count = layer_count(config)
    if not config.has(XIELU_KEYS[0]):
        return [()] * count
    return list(zip(*(config.numbers(key, count) for key in XIELU_KEYS), strict=True))


def _read_activation(config: Config) -> Activation:
    is_xielu = config.values.get("hidden_act", "xielu") == "xielu"
    return "xielu" if is_xielu else config.activation()


FAMILY = Family(
    "apertus",
    read,
    gguf_arch="apertus",
    gguf_keys={key: key for key in XIELU_KEYS},
    defaults={"max_position_embeddings": 65_536},
    safetensors={
        "mixer.norm": "attention_layernorm",
        "ffn.norm": "feedforward_layernorm",
        "ffn.alpha_p": "mlp.act_fn.alpha_p",
        "ffn.alpha_n": "mlp.act_fn.alpha_n",
        "ffn.beta": "mlp.act_fn.beta",
        "ffn.eps": "mlp.act_fn.eps",
    },
)
