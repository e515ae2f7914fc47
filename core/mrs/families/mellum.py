"""Mellum 2: Qwen 3 MoE's layers, some of them with a window and a rope of their own."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, full_or_sliding, read_window
from mrs.layers.attention.config import biased_attention, read_ropes_of_kinds
from mrs.layers.mlp.config import read_mlp
from mrs.layers.moe.config import mixed_layers, read_expert, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, ropes = read_norm(config), read_ropes_of_kinds(config)
    attention = {
        kind: biased_attention(
            config,
            qk_norm=norm,
            rope=rope,
            window=read_window(config) if kind == SLIDING else None,
        )
        for kind, rope in ropes.items()
    }
    router = read_router(config, norm_topk_prob=config.flag("norm_topk_prob", True))
    feed_forward = mixed_layers(config, Moe(router, read_expert(config)), read_mlp(config))
    mixers = [attention[kind] for kind in full_or_sliding(config)]
    return decoder(config, "mellum", stack_layers(mixers, feed_forward, norm), norm)


FAMILY = Family(
    "mellum",
    read,
    gguf_arch="mellum",
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 128,
        "sliding_window": 1024,
        "max_position_embeddings": 131_072,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 896,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 5e5},
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    ignored=("mtp.",),
)
