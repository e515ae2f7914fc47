"""Cohere 2 MoE: Cohere 2 with routed and shared experts after the first layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, layer_count, layer_types, read_window
from mrs.layers.attention.config import biased_attention, read_head_rope
from mrs.layers.attention.spec import Attention
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import SHARED_EXPERTS, STACKED_EXPERTS
from mrs.layers.moe.config import (
    expert_layers,
    mixed_layers,
    read_expert,
    read_router,
    read_scoring,
    read_shared_expert,
)
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_layer_norm, read_norm

_PREFIX_PERIOD = "prefix_dense_sliding_window_pattern"


def read(config: Config) -> ModelSpec:
    has_rms_norm = config.has("rms_norm_eps")
    norm = read_norm(config) if has_rms_norm else read_layer_norm(config, bias=False)
    mlp = read_mlp(config)
    size = config.positive("prefix_dense_intermediate_size", mlp.intermediate)
    feed_forward = mixed_layers(config, read_averaged_moe(config), replace(mlp, intermediate=size))
    layers = stack_layers(read_prefix_mixers(config), feed_forward, norm, style="parallel")
    scale = config.number("logit_scale", 0.0625)
    return decoder(config, "cohere2_moe", layers, norm, logit_scale=scale)


def read_prefix_mixers(config: Config) -> list[Attention]:
    """The attention of each layer.

    Layers that attend to all tokens have no rope, unless they are dense and all of those do.
    """
    rope, window = read_head_rope(config, interleaved=True), read_window(config)
    rotates_dense = config.positive(_PREFIX_PERIOD, 1) == 1
    mixers = []
    for kind, has_experts in zip(_kinds(config), expert_layers(config), strict=True):
        is_local = kind == SLIDING
        rotates = is_local or (rotates_dense and not has_experts)
        fields = {"rope": rope if rotates else None, "window": window if is_local else None}
        mixers.append(biased_attention(config, **fields))
    return mixers


def _kinds(config: Config) -> Sequence[str]:
    """The kind of each layer, listed or by a period of the first and one of later layers."""
    if config.has("layer_types"):
        return layer_types(config, FULL, SLIDING)
    dense, count = config.integer("first_k_dense_replace", 0), layer_count(config)
    first = _periodic(min(dense, count), config.positive(_PREFIX_PERIOD, 1))
    return first + _periodic(count - len(first), config.positive("sliding_window_pattern", 4))


def _periodic(count: int, period: int) -> list[str]:
    """The kinds of `count` layers: every `period`-th attends to all tokens."""
    return [SLIDING if (layer + 1) % period else FULL for layer in range(count)]


def read_averaged_moe(config: Config) -> Moe:
    """Routed experts, and a shared one that is averaged with or added to them."""
    config.allow_only("expert_selection_fn", "softmax", "sigmoid")
    config.allow_only("shared_expert_combination_strategy", "average", "sum")
    is_sigmoid = (config.values.get("expert_selection_fn") or read_scoring(config)) == "sigmoid"
    is_sum = config.values.get("shared_expert_combination_strategy") == "sum"
    size = config.spelling("moe_intermediate_size", "intermediate_size")  # the first in GGUF files
    shared = read_shared_expert(config, size, out_scale=1.0 if is_sum else 0.5)
    router = read_router(
        config,
        scoring="sigmoid" if is_sigmoid else "softmax",
        norm_topk_prob=not is_sigmoid or config.flag("norm_topk_prob", True),
        scale=1.0 if shared is None else shared.out_scale,
    )
    return Moe(router, read_expert(config, size), shared=shared)


FAMILY = Family(
    "cohere2_moe",
    read,
    defaults={
        "tie_word_embeddings": True,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_position_embeddings": 8192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    safetensors={**SHARED_EXPERTS, **STACKED_EXPERTS},
    gguf_arch="cohere2moe",
    gguf_defaults={"scoring_func": "sigmoid"},
    gguf_keys={
        "logit_scale": "logit_scale",
        "first_k_dense_replace": "leading_dense_block_count",
        "scoring_func": "expert_gating_func",
        "norm_topk_prob": "expert_weights_norm",
        "num_shared_experts": "expert_shared_count",
    },
    ignored=("blk.{layers}.",),
)
