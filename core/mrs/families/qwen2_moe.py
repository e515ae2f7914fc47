"""Qwen 2 MoE: Qwen 2 with routed experts and one gated shared expert."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    read_attention,
    read_mlp,
    read_norm,
    read_window,
    windows,
)
from mrs.architecture.readers.moe_reader import expert_count, mixed_layers, read_expert, read_router


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    bias = config.flag("qkv_bias", True)
    feed_forward = mixed_layers(config, read_moe(config), read_mlp(config))
    layers = [
        Layer(read_attention(config, qkv_bias=bias, window=window), each, norm)
        for window, each in zip(_windows(config), feed_forward, strict=True)
    ]
    return decoder(config, "qwen2_moe", layers, norm)


def read_moe(config: Config, norm_topk_prob: bool = False) -> Moe | None:
    """The mixture of experts of Qwen 2 and Qwen 3 Next; None for a model without experts.

    `norm_topk_prob` is the default if the config lacks the key.
    """
    if not expert_count(config):
        return None
    return Moe(
        read_router(config, norm_topk_prob=config.flag("norm_topk_prob", norm_topk_prob)),
        read_expert(config),
        shared=read_expert(config, "shared_expert_intermediate_size"),
        shared_gate=True,
    )


def _windows(config: Config) -> list[int | None]:
    """As `windows`, but without `layer_types` every other one of the lower layers has a window."""
    if config.has("layer_types") or not config.flag("use_sliding_window", False):
        return windows(config)
    count = config.integer("max_window_layers", 28)
    window = read_window(config)
    return [
        window if layer < count and layer % 2 == 0 else None for layer in range(layer_count(config))
    ]


FAMILY = Family(
    "qwen2_moe",
    read,
    gguf_arch="qwen2moe",
    defaults={
        "num_key_value_heads": 16,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
)
