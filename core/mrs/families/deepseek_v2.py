"""DeepSeek V2: MLA, and after the first layers many small routed experts plus shared experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.draft_head import NEXTN
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.layers.latent_attention.config import MLA_DEFAULTS, MLA_GGUF_KEYS, read_latent_attention
from mrs.layers.latent_attention.spec import LatentAttention
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import SHARED_EXPERTS
from mrs.layers.moe.config import (
    GROUPED_MOE_GGUF_KEYS,
    expert_count,
    mixed_layers,
    read_grouped_moe,
    read_scoring,
)
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    if read_scoring(config) == "softmax":
        config.require_off("norm_topk_prob")
    return read_deepseek(config, "deepseek_v2")


def read_deepseek(
    config: Config, family: str, attention: Sequence[LatentAttention] = (), **router: Any
) -> ModelSpec:
    """MLA, or the given `attention` of each layer, and experts; `router` overrides its fields.

    A model without experts has an MLP in every layer.
    """
    norm, mlp = read_norm(config), read_mlp(config, bias=config.flag("mlp_bias", False))
    moe = read_grouped_moe(config, **router) if expert_count(config) else None
    feed_forward = mixed_layers(config, moe, mlp)
    mixers = attention or [read_latent_attention(config)] * len(feed_forward)
    return decoder(config, family, stack_layers(mixers, feed_forward, norm), norm)


GGUF_KEYS = {**MLA_GGUF_KEYS, **GROUPED_MOE_GGUF_KEYS}

FAMILY = Family(
    "deepseek_v2",
    read,
    gguf_arch="deepseek2",
    defaults={
        **MLA_DEFAULTS,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "topk_method": "greedy",
    },
    safetensors=SHARED_EXPERTS,
    gguf_keys=GGUF_KEYS,
    head=NEXTN,
)
