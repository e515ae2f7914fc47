"""Laguna: attention with a softplus gate, heads by layer, and experts by sigmoid scores."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mlp_names import STACKED_EXPERTS
from mrs.architecture.readers.head_counts_reader import read_gated_heads
from mrs.architecture.readers.layer_kinds_reader import FULL, SLIDING
from mrs.architecture.readers.layer_reader import decoder, read_mlp, read_norm, stack_layers
from mrs.architecture.readers.moe_reader import mixed_layers, read_expert, read_sigmoid_moe


def read(config: Config) -> ModelSpec:
    config.require_off("moe_apply_router_weight_on_input", "moe_router_logit_softcapping")
    norm, shared = read_norm(config), read_expert(config, "shared_expert_intermediate_size")
    moe = read_sigmoid_moe(config, shared, norm_topk_prob=True)
    mixers, feed_forward = read_gated_heads(config), mixed_layers(config, moe, read_mlp(config), 1)
    layers = stack_layers(mixers, feed_forward, norm)
    return decoder(config, "laguna", layers, norm)


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
