"""Qwen 3 MoE: Qwen 3 with a mixture of experts."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import read_window
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.moe.config import expert_count, mixed_layers, read_expert, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    window = read_window(config) if config.flag("use_sliding_window", False) else None
    attention = biased_attention(config, qk_norm=norm, window=window)
    moe = None
    if expert_count(config):
        # The key is missing in GGUF files, where the weights of the chosen experts sum to one.
        router = read_router(config, norm_topk_prob=config.flag("norm_topk_prob", True))
        moe = Moe(router, read_expert(config))
    feed_forward = mixed_layers(config, moe, read_mlp(config))
    layers = [Layer(attention, ffn, norm) for ffn in feed_forward]
    return decoder(config, "qwen3_moe", layers, norm)


FAMILY = Family(
    "qwen3_moe",
    read,
    gguf_arch="qwen3moe",
    other_gguf_archs=("qwen3vlmoe",),
    defaults={
        "num_key_value_heads": 4,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
    },
)
