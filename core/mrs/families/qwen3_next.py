"""Qwen 3 Next: three gated delta nets per gated attention layer, and a mixture of experts."""

from __future__ import annotations

from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.delta_net_spec import GatedDeltaNet
from mrs.architecture.mixers.mixer import Mixer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    layer_types,
    read_attention,
    read_mlp,
    read_norm,
)
from mrs.architecture.readers.moe_reader import mixed_layers
from mrs.errors import NotReadable
from mrs.families.qwen2_moe import read_moe


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    bias = config.flag("attention_bias", False)
    attention = read_attention(config, qk_norm=norm, gated=True, qkv_bias=bias, out_bias=bias)
    delta_net = read_delta_net(config)
    mixers: list[Mixer] = [
        attention if is_attention else delta_net for is_attention in attention_layers(config)
    ]
    feed_forward = mixed_layers(config, read_moe(config, norm_topk_prob=True), read_mlp(config))
    layers = [Layer(mixer, each, norm) for mixer, each in zip(mixers, feed_forward, strict=True)]
    return decoder(config, "qwen3_next", layers, norm)


def read_delta_net(config: Config, **changes: Any) -> GatedDeltaNet:
    """The linear attention of Qwen 3 Next and Qwen 3.5; `changes` override its fields."""
    key_heads = config.positive("linear_num_key_heads")
    value_heads = config.positive("linear_num_value_heads")
    if value_heads % key_heads:
        raise NotReadable(
            f"linear_num_value_heads = {value_heads} is not a multiple of "
            f"linear_num_key_heads = {key_heads}",
            where=config.where,
        )
    # GGUF files have the size of all value heads together.
    value_dim = config.integer("linear_inner_size", 0) // value_heads
    return GatedDeltaNet(
        key_heads,
        value_heads,
        config.positive("linear_key_head_dim"),
        config.positive("linear_value_head_dim", value_dim),
        config.positive("linear_conv_kernel_dim", 4),
        read_norm(config),
        **changes,
    )


def attention_layers(config: Config) -> list[bool]:
    """Whether each layer has softmax attention: listed, or at every `full_attention_interval`."""
    recurrent = config.sequence("recurrent_layers", ())  # in GGUF files
    kinds = [("full_attention", "linear_attention")[bool(each)] for each in recurrent]
    if kinds or config.has("layer_types"):
        listed = Config({"layer_types": kinds, **config.values}, config.where)
        types = layer_types(listed, "linear_attention", "full_attention")
        return [kind == "full_attention" for kind in types]
    interval = config.positive("full_attention_interval", 4)
    return [(layer + 1) % interval == 0 for layer in range(layer_count(config))]


NAMES = {
    "mixer.conv": "linear_attn.conv1d",
    "mixer.out": "linear_attn.out_proj",
}
GGUF_NAMES = {
    "mixer.conv": "ssm_conv1d",
    "mixer.out": "ssm_out",
    "ffn.norm": "post_attention_norm",
}
GGUF_KEYS = {
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_inner_size": "ssm.inner_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "full_attention_interval": "full_attention_interval",
    "recurrent_layers": "attention.recurrent_layers",
}

FAMILY = Family(
    "qwen3_next",
    read,
    gguf_arch="qwen3next",
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    safetensors=NAMES,
    gguf=GGUF_NAMES,
    gguf_keys=GGUF_KEYS,
    norm_plus_one=True,
    # The multi-token prediction layer.
    ignored=("mtp.",),
)
