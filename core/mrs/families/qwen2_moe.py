"""Qwen 2 MoE: Qwen 2 with experts and one shared expert, whose result is gated."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer, Moe
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
    layers = [
        Layer(read_attention(config, qkv_bias=bias, window=window), part, norm)
        for window, part in zip(
            _windows(config), mixed_layers(config, read_moe(config), read_mlp(config)), strict=True
        )
    ]
    return decoder(config, "qwen2_moe", layers, norm)


def read_moe(config: Config, norm_topk_prob: bool = False) -> Moe | None:
    """The mixture that Qwen 2 and Qwen 3 Next have, None in a model without experts.

    `norm_topk_prob` is what a config that is silent means.
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
    """Without `layer_types`, every other one of the lower layers has a window that is in use."""
    if config.has("layer_types") or not config.flag("use_sliding_window", False):
        return windows(config)
    count = config.whole("max_window_layers", 28)
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
