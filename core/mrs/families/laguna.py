"""Laguna: attention with a softplus gate, heads by layer, and experts by sigmoid scores."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, full_or_sliding, layer_count, read_window
from mrs.layers.attention.config import biased_attention, read_head_rope
from mrs.layers.attention.spec import Attention
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import STACKED_EXPERTS
from mrs.layers.moe.config import mixed_layers, read_expert, read_sigmoid_moe
from mrs.layers.norm.config import read_norm


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
        for heads, kind in zip(_head_counts(config), full_or_sliding(config), strict=True)
    ]


def _head_counts(config: Config) -> list[int]:
    key, count = "num_attention_heads_per_layer", layer_count(config)
    if not config.has(key):
        return [config.positive("num_attention_heads")] * count
    return list(map(int, config.numbers(key, count, above=0)))


def _read_attention(config: Config, kind: str) -> Attention:
    gating = config.values.get("gating", True)
    return biased_attention(
        config,
        rope=read_head_rope(config, layer_type=kind),
        window=read_window(config) if kind == SLIDING else None,
        qk_norm=read_norm(config),
        output_gate="softplus",
        gates_heads=gating is True or gating == "per-head",
    )


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
    safetensors={
        **STACKED_EXPERTS,
        "mixer.gate": "self_attn.g_proj",
        "ffn.router.correction": "mlp.experts.e_score_correction_bias",
    },
)
