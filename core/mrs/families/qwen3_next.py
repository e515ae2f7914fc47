"""Qwen 3 Next: three gated delta nets per gated attention layer, and a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.draft_head import MTP
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, LINEAR, attention_layers, every
from mrs.layers.attention.config import biased_attention
from mrs.layers.gated_delta_net.config import (
    DELTA_NET_DEFAULTS,
    DELTA_NET_GGUF_KEYS,
    read_delta_net,
)
from mrs.layers.gated_delta_net.spec import DELTA_NET, GGUF_DELTA_NET
from mrs.layers.mixer import FeedForward, Mixer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.moe.config import expert_count, mixed_layers, read_gated_moe
from mrs.layers.norm.config import read_norm


def read_delta_net_mixers(config: Config, *, tiled: bool) -> list[Mixer]:
    """The mixer of each layer; value heads of GGUF files may be `tiled`.

    Attention is in the layers that are listed, or in every `full_attention_interval`-th one.
    """
    attention = biased_attention(config, qk_norm=read_norm(config), gated=True)
    delta_net = read_delta_net(config, tiled=tiled)
    has_attention = attention_layers(config, FULL, LINEAR)
    if has_attention is None:
        has_attention = every(config, config.positive("full_attention_interval", 4))
    return [attention if each else delta_net for each in has_attention]


def read(config: Config) -> ModelSpec:
    is_normed = config.flag("norm_topk_prob", True)
    moe = read_gated_moe(config, norm_topk_prob=is_normed) if expert_count(config) else None
    return read_hybrid(config, "qwen3_next", mixed_layers(config, moe, read_mlp(config)))


def read_hybrid(
    config: Config, family: str, feed_forward: Sequence[FeedForward], *, tiled: bool = False
) -> ModelSpec:
    """Layers with these feed-forward networks; delta nets of GGUF files may be `tiled`."""
    norm, mixers = read_norm(config), read_delta_net_mixers(config, tiled=tiled)
    layers = stack_layers(mixers, feed_forward, norm)
    return decoder(config, family, layers, norm)


FAMILY = Family(
    "qwen3_next",
    read,
    gguf_arch="qwen3next",
    defaults={
        **DELTA_NET_DEFAULTS,
        "num_key_value_heads": 2,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    safetensors=DELTA_NET,
    gguf=GGUF_DELTA_NET,
    gguf_keys=DELTA_NET_GGUF_KEYS,
    norm_plus_one="all",
    head=MTP,
    ignored=("mtp.",),
)
