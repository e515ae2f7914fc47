"""Qwen 2 MoE: Qwen 2 with routed experts and one gated shared expert."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count, read_window, windows
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.moe.config import expert_count, mixed_layers, read_gated_moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, bias = read_norm(config), config.flag("qkv_bias", True)
    is_normed = config.flag("norm_topk_prob", False)
    moe = read_gated_moe(config, norm_topk_prob=is_normed) if expert_count(config) else None
    feed_forward = mixed_layers(config, moe, read_mlp(config))
    layers = [
        Layer(read_attention(config, qkv_bias=bias, window=window), ffn, norm)
        for window, ffn in zip(_windows(config), feed_forward, strict=True)
    ]
    return decoder(config, "qwen2_moe", layers, norm)


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
