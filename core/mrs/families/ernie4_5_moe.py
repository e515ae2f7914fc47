"""ERNIE 4.5 MoE: ERNIE 4.5 with routed and shared experts after the first layers."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    read_mlp,
    read_norm,
)
from mrs.architecture.readers.moe_reader import read_expert, read_router
from mrs.families.ernie4_5 import read_biased_attention


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    attention, bias = read_biased_attention(config)
    moe, mlp = read_moe(config, bias), read_mlp(config, bias=bias)
    layers = [Layer(attention, moe if each else mlp, norm) for each in _expert_layers(config)]
    return decoder(config, "ernie4_5_moe", layers, norm, head_bias=config.flag("use_bias", False))


def read_moe(config: Config, bias: bool) -> Moe:
    expert = read_expert(config)
    shared = config.integer("moe_num_shared_experts", 0)
    wide = replace(expert, intermediate=expert.intermediate * shared, bias=bias)
    router = read_router(config, score_correction_bias=True, norm_topk_prob=True)
    return Moe(router, expert, shared=wide if shared else None)


def _expert_layers(config: Config) -> list[bool]:
    """Whether each layer is a mixture of experts."""
    count = layer_count(config)
    interval = config.positive("moe_layer_interval", 1)
    first = config.integer("moe_layer_start_index", 1)
    is_last_open = config.values.get("moe_layer_end_index") in (None, -1)
    end = count if is_last_open else config.integer("moe_layer_end_index") + 1
    return [(layer + 1) % interval == 0 and first <= layer < end for layer in range(count)]


FAMILY = Family(
    "ernie4_5_moe",
    read,
    gguf_arch="ernie4_5-moe",
    defaults={
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_intermediate_size": 1536,
    },
    safetensors={
        "ffn.router.correction": "mlp.moe_statics.e_score_correction_bias",
        "ffn.shared.gate": "mlp.shared_experts.gate_proj",
        "ffn.shared.up": "mlp.shared_experts.up_proj",
        "ffn.shared.down": "mlp.shared_experts.down_proj",
    },
    gguf_keys={
        "moe_num_shared_experts": "expert_shared_count",
        "moe_layer_interval": "interleave_moe_layer_step",
        "moe_layer_start_index": "leading_dense_block_count",
    },
    # The multi-token prediction layers.
    ignored=("model.mtp_",),
)
