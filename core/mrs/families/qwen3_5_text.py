"""Qwen 3.5 and later: Qwen 3 Next with an MLP, and separate projections in its delta nets."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mixer import FeedForward, Mixer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    read_attention,
    read_mlp,
    read_norm,
)
from mrs.families import qwen3_next
from mrs.families.qwen3_next import attention_layers, read_delta_net


def read(config: Config) -> ModelSpec:
    return read_hybrid(config, "qwen3_5_text", [read_mlp(config)] * layer_count(config))


def read_hybrid(config: Config, family: str, feed_forward: Sequence[FeedForward]) -> ModelSpec:
    norm = read_norm(config)
    bias = config.flag("attention_bias", False)
    attention = read_attention(config, qk_norm=norm, gated=True, qkv_bias=bias, out_bias=bias)
    # GGUF files, and only they, have the size of all value heads together, and order them anew.
    delta_net = read_delta_net(config, tiled=config.has("linear_inner_size"))
    mixers: list[Mixer] = [
        attention if is_attention else delta_net for is_attention in attention_layers(config)
    ]
    layers = [Layer(mixer, each, norm) for mixer, each in zip(mixers, feed_forward, strict=True)]
    return decoder(config, family, layers, norm)


DEFAULTS = {
    "num_attention_heads": 16,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
NAMES = {
    **qwen3_next.NAMES,
    "mixer.qkv": "linear_attn.in_proj_qkv",
    "mixer.z": "linear_attn.in_proj_z",
    "mixer.beta": "linear_attn.in_proj_b",
    "mixer.step": "linear_attn.in_proj_a",
}
GGUF_NAMES = {**qwen3_next.GGUF_NAMES, "mixer.beta": "ssm_beta", "mixer.step": "ssm_alpha"}

FAMILY = Family(
    "qwen3_5_text",
    read,
    gguf_arch="qwen35",
    aliases=("qwen3_5",),
    defaults={**DEFAULTS, "num_key_value_heads": 4},
    safetensors=NAMES,
    gguf=GGUF_NAMES,
    gguf_keys=qwen3_next.GGUF_KEYS,
    norm_plus_one=True,
    # The multi-token prediction layer.
    ignored=("mtp.",),
)
