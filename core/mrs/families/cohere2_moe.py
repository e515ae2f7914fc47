"""Cohere 2 MoE: Cohere 2 with routed and shared experts after the first layers."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    layer_types,
    read_attention,
    read_heads,
    read_layer_norm,
    read_mlp,
    read_norm,
    read_window,
)
from mrs.architecture.readers.moe_reader import read_expert, read_router
from mrs.architecture.readers.rope_reader import read_rope
from mrs.architecture.tensor_names import STACKED_EXPERTS
from mrs.families.deepseek_v2 import NAMES

_DENSE, _SPARSE = "dense", "sparse"
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read(config: Config) -> ModelSpec:
    norm, bias = _read_norm(config), config.flag("attention_bias", False)
    rope, window = read_rope(config, read_heads(config)[2], interleaved=True), read_window(config)
    feed_forward = {_DENSE: _read_mlp(config), _SPARSE: _read_moe(config)}
    rotates = {_DENSE: config.positive("prefix_dense_sliding_window_pattern", 1) == 1}
    layers = []
    for kind, width in zip(_kinds(config), _widths(config), strict=True):
        is_local = width == _SLIDING
        mixer = read_attention(
            config,
            rope=rope if is_local or rotates.get(kind) else None,
            window=window if is_local else None,
            qkv_bias=bias,
            out_bias=bias,
        )
        layers.append(Layer(mixer, feed_forward[kind], norm, style="parallel"))
    scale = config.number("logit_scale", 0.0625)
    return decoder(config, "cohere2_moe", layers, norm, logit_scale=scale)


def _read_norm(config: Config) -> Norm:
    if config.has("rms_norm_eps"):
        return read_norm(config)
    return replace(read_layer_norm(config), bias=False)


def _read_mlp(config: Config) -> Mlp:
    size = config.positive("intermediate_size")
    return replace(
        read_mlp(config), intermediate=config.positive("prefix_dense_intermediate_size", size)
    )


def _read_moe(config: Config) -> Moe:
    config.allow_only("expert_selection_fn", "softmax", "sigmoid")
    config.allow_only("shared_expert_combination_strategy", "average", "sum")
    is_sigmoid = config.values.get("expert_selection_fn") == "sigmoid"
    count = config.integer("num_shared_experts", 0)
    is_sum = config.values.get("shared_expert_combination_strategy") == "sum"
    share = 1.0 if is_sum or not count else 0.5
    router = read_router(
        config,
        scoring="sigmoid" if is_sigmoid else "softmax",
        norm_topk_prob=not is_sigmoid or config.flag("norm_topk_prob", True),
        scale=share,
    )
    expert = read_expert(config, "intermediate_size")
    wide = replace(expert, intermediate=expert.intermediate * count, out_scale=share)
    return Moe(router, expert, shared=wide if count else None)


def _kinds(config: Config) -> list[str]:
    """Whether the feed-forward network of each layer is dense or sparse."""
    if config.has("mlp_layer_types"):
        return list(layer_types(config, _DENSE, _SPARSE, key="mlp_layer_types"))
    count, dense = layer_count(config), config.integer("first_k_dense_replace", 0)
    return [_DENSE if layer < dense else _SPARSE for layer in range(count)]


def _widths(config: Config) -> list[str]:
    if config.has("layer_types"):
        return list(layer_types(config, _FULL, _SLIDING))
    dense, count = config.integer("first_k_dense_replace", 0), layer_count(config)
    first = _pattern(min(dense, count), config.positive("prefix_dense_sliding_window_pattern", 1))
    return first + _pattern(count - len(first), config.positive("sliding_window_pattern", 4))


def _pattern(count: int, period: int) -> list[str]:
    """Every `period`-th of so many layers attends to all tokens."""
    return [_SLIDING if (layer + 1) % period else _FULL for layer in range(count)]


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
    safetensors={**NAMES, **STACKED_EXPERTS},
)
