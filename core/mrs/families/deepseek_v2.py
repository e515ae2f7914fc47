"""DeepSeek V2: MLA, and after the first layers many small routed experts plus shared experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    layer_types,
    read_mlp,
    read_norm,
)
from mrs.architecture.readers.mla_reader import read_latent_attention
from mrs.architecture.readers.moe_reader import read_expert, read_router

#: The key of a list with the kind of each layer's feed-forward module.
TYPES_KEY = "mlp_layer_types"
#: GGUF's ids of the two scoring functions.
_SCORING = {1: "softmax", 2: "sigmoid"}


def read(config: Config) -> ModelSpec:
    if _scoring(config) == "softmax":
        config.allow_only("norm_topk_prob", False)
    return read_deepseek(config, "deepseek_v2")


def read_deepseek(
    config: Config, family: str, attention: LatentAttention | None = None, **router: Any
) -> ModelSpec:
    """MLA, or the given `attention`, and experts; `router` overrides fields of the router."""
    norm = read_norm(config)
    attention = attention or read_latent_attention(config)
    dense = read_mlp(config, bias=config.flag("mlp_bias", False))
    moe = read_moe(config, **router)
    layers = [
        Layer(attention, dense if is_dense else moe, norm) for is_dense in dense_layers(config)
    ]
    return decoder(config, family, layers, norm)


def dense_layers(config: Config) -> list[bool]:
    """Whether each layer has an MLP instead of experts."""
    count = layer_count(config)
    if config.has(TYPES_KEY):
        return [kind == "dense" for kind in layer_types(config, "dense", "sparse", key=TYPES_KEY)]
    first = config.integer("first_k_dense_replace", 0)
    return [layer < first for layer in range(count)]


def _scoring(config: Config) -> str:
    config.allow_only("scoring_func", *_SCORING, *_SCORING.values())
    # GGUF files of GLM 4.7 Flash leave it to the reader.
    usual = "sigmoid" if config.flag("has_score_correction", False) else "softmax"
    scoring = config.values.get("scoring_func") or usual
    return _SCORING[scoring] if isinstance(scoring, int) else str(scoring)


def read_moe(config: Config, **changes: Any) -> Moe:
    """Routed experts and shared ones; `changes` override fields of the router."""
    config.allow_only("moe_layer_freq", 1)
    config.allow_only("topk_method", "greedy", "group_limited_greedy", "noaux_tc")
    is_sigmoid = _scoring(config) == "sigmoid"
    expert = read_expert(config)
    shared = config.integer("n_shared_experts", 0)
    fields: dict[str, Any] = {
        "scoring": _scoring(config),
        "score_correction_bias": is_sigmoid,
        "norm_topk_prob": config.flag("norm_topk_prob", False),
        "scale": config.number("routed_scaling_factor", 1.0),
        "group_score_experts": 2 if is_sigmoid else 1,
        **_groups(config),
        **changes,
    }
    router = read_router(config, **fields)
    bias = config.flag("mlp_bias", False)
    shared_expert = replace(expert, intermediate=expert.intermediate * shared, bias=bias)
    return Moe(router, expert, shared=shared_expert if shared else None)


def _groups(config: Config) -> Mapping[str, int]:
    if config.values.get("topk_method") == "greedy":
        return {}
    n_group = config.positive("n_group", 1)
    return {"n_group": n_group, "topk_group": config.positive("topk_group", n_group)}


#: Defaults of transformers for both V2 and V3.
DEFAULTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

NAMES = {
    "ffn.shared.gate": "mlp.shared_experts.gate_proj",
    "ffn.shared.up": "mlp.shared_experts.up_proj",
    "ffn.shared.down": "mlp.shared_experts.down_proj",
}

GGUF_KEYS = {
    "qk_rope_head_dim": "rope.dimension_count",
    "qk_head_dim": "attention.key_length_mla",
    "v_head_dim": "attention.value_length_mla",
    "value_length": "attention.value_length",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "scoring_func": "expert_gating_func",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}

FAMILY = Family(
    "deepseek_v2",
    read,
    gguf_arch="deepseek2",
    defaults={
        **DEFAULTS,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "topk_method": "greedy",
    },
    safetensors=NAMES,
    gguf_keys=GGUF_KEYS,
)
