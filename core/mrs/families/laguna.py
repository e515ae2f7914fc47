"""Laguna: attention with a softplus gate, heads by layer, and experts by sigmoid scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import (
    FULL,
    SLIDING,
    full_or_sliding,
    layer_count,
    read_window,
    windows,
)
from mrs.layers.attention.config import biased_attention, read_heads, read_ropes_of_kinds
from mrs.layers.attention.spec import Attention
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import STACKED_EXPERTS
from mrs.layers.moe.config import mixed_layers, read_expert, read_sigmoid_moe
from mrs.layers.norm.config import read_norm
from mrs.layers.rope.spec import Rope


def read(config: Config) -> ModelSpec:
    config.require_off("moe_apply_router_weight_on_input", "moe_router_logit_softcapping")
    norm, shared = read_norm(config), read_expert(config, "shared_expert_intermediate_size")
    moe = read_sigmoid_moe(config, shared, norm_topk_prob=True)
    mixers, feed_forward = read_gated_heads(config), mixed_layers(config, moe, read_mlp(config), 1)
    layers = stack_layers(mixers, feed_forward, norm)
    return decoder(config, "laguna", layers, norm)


def read_gated_heads(config: Config) -> list[Attention]:
    """The attention of each layer; without a list of types all attend to all tokens."""
    return [
        _read_attention(config.changed({"num_attention_heads": heads}), kind)
        for heads, kind in zip(_head_counts(config), _kinds(config), strict=True)
    ]


def _kinds(config: Config) -> Sequence[str]:
    """In GGUF files with a window, which do not list the kinds, every fourth layer has none."""
    if config.flag("first_of_four_is_full", False) and not config.has("layer_types"):
        local = windows(config, period=4, full_first=True)
        return [FULL if window is None else SLIDING for window in local]
    return full_or_sliding(config)


def _head_counts(config: Config) -> list[int]:
    count = layer_count(config)
    key = config.spelling("num_attention_heads_by_layer", "num_attention_heads_per_layer")
    if not config.has(key):
        return [config.positive("num_attention_heads")] * count
    return list(map(int, config.numbers(key, count, above=0)))


def _read_attention(config: Config, kind: str) -> Attention:
    gating = config.values.get("gating", True)
    by_head = gating is True or gating == "per-head"
    if config.has("attention_gates"):  # in GGUF files, whose first layer tells
        by_head = config.integer("attention_gates") == _head_counts(config)[0]
    return biased_attention(
        config,
        rope=_read_rope(config, kind),
        window=read_window(config) if kind == SLIDING else None,
        qk_norm=read_norm(config),
        output_gate="softplus",
        gates_heads=by_head,
    )


def _read_rope(config: Config, kind: str) -> Rope:
    rope = read_ropes_of_kinds(config)[kind]
    if not config.has("rotary_dim"):
        return rope
    # GGUF files say it of each kind.
    local_dim = config.positive("local_rotary_dim", read_heads(config)[2])
    return replace(rope, dim=local_dim) if kind == SLIDING else rope


FAMILY = Family(
    "laguna",
    read,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 512,
        "max_position_embeddings": 131_072,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    gguf_arch="laguna",
    gguf_keys={
        "first_k_dense_replace": "leading_dense_block_count",
        "moe_routed_scaling_factor": "expert_weights_scale",
        "local_rotary_dim": "rope.dimension_count_swa",
    },
    gguf_defaults={"first_of_four_is_full": True},
    safetensors={
        **STACKED_EXPERTS,
        "mixer.gate": "self_attn.g_proj",
        "ffn.router.correction": "mlp.experts.e_score_correction_bias",
    },
)
