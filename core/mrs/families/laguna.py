"""Laguna: attention with a softplus gate, heads by layer, and experts by sigmoid scores."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    layer_types,
    read_attention,
    read_heads,
    read_mlp,
    read_norm,
    read_window,
)
from mrs.architecture.readers.moe_reader import read_expert, read_router
from mrs.architecture.readers.rope_reader import read_rope
from mrs.architecture.tensor_names import STACKED_EXPERTS

_FULL, _SLIDING = "full_attention", "sliding_attention"


def read(config: Config) -> ModelSpec:
    norm, count = read_norm(config), layer_count(config)
    feed_forward = {"dense": read_mlp(config), "sparse": _read_moe(config)}
    widths = layer_types(config, _FULL, _SLIDING) if config.has("layer_types") else [_FULL] * count
    kinds = ["dense", *["sparse"] * (count - 1)]
    if config.has("mlp_layer_types"):
        kinds = [*layer_types(config, *feed_forward, key="mlp_layer_types")]
    layers = [
        Layer(_read_attention(config, heads, width), feed_forward[kind], norm)
        for heads, width, kind in zip(_heads(config), widths, kinds, strict=True)
    ]
    return decoder(config, "laguna", layers, norm)


def _heads(config: Config) -> list[int]:
    """The heads of each layer."""
    count = layer_count(config)
    if not config.has("num_attention_heads_per_layer"):
        return [config.positive("num_attention_heads")] * count
    return list(map(int, config.numbers("num_attention_heads_per_layer", count, above=0)))


def _read_attention(config: Config, heads: int, width: str) -> Attention:
    own = Config({**config.values, "num_attention_heads": heads}, config.where)
    bias, gating = config.flag("attention_bias", False), config.values.get("gating", True)
    return read_attention(
        own,
        rope=read_rope(config, read_heads(own)[2], layer_type=width),
        window=read_window(config) if width == _SLIDING else None,
        qk_norm=read_norm(config),
        output_gate="softplus",
        gates_heads=gating is True or gating == "per-head",
        qkv_bias=bias,
        out_bias=bias,
    )


def _read_moe(config: Config) -> Moe:
    config.allow_only("moe_apply_router_weight_on_input", False)
    config.allow_only("moe_router_logit_softcapping", 0, 0.0)
    router = read_router(
        config,
        scoring="sigmoid",
        score_correction_bias=True,
        norm_topk_prob=True,
        scale=config.number("moe_routed_scaling_factor", 1.0),
    )
    shared = read_expert(config, "shared_expert_intermediate_size")
    return Moe(router, read_expert(config), shared=shared)


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
            _FULL: {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
            _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    safetensors={
        **STACKED_EXPERTS,
        "mixer.gate": "self_attn.g_proj",
        "ffn.router.correction": "mlp.experts.e_score_correction_bias",
    },
)
