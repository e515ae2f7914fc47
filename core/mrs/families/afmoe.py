"""AFMoE (Trinity): attention with an output gate, sandwich norms, and experts by sigmoid scores."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import windows
from mrs.layers.attention.config import read_windowed_rope
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import SHARED_EXPERTS, STACKED_EXPERTS
from mrs.layers.moe.config import (
    GROUPED_MOE_GGUF_KEYS,
    mixed_layers,
    read_shared_expert,
    read_sigmoid_moe,
)
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, shared = read_norm(config, default=1e-5), read_shared_expert(config, default=2)
    local = windows(config, period=config.positive("global_attn_every_n_layers", 4))
    mixers = read_windowed_rope(config, local, qk_norm=norm, output_gate="sigmoid")
    moe = read_sigmoid_moe(config, shared)
    feed_forward = mixed_layers(config, moe, read_mlp(config), first=1)
    layers = stack_layers(mixers, feed_forward, norm, style="sandwich")
    scale = config.positive("hidden_size") ** 0.5 if config.flag("mup_enabled", False) else 1.0
    return decoder(config, "afmoe", layers, norm, embedding_scale=scale)


FAMILY = Family(
    "afmoe",
    read,
    gguf_arch="afmoe",
    defaults={
        "head_dim": 128,
        "max_position_embeddings": 16_384,
        "sliding_window": 1024,
        "moe_intermediate_size": 1408,
        "num_experts": 64,
        "num_experts_per_tok": 6,
    },
    safetensors={
        **SHARED_EXPERTS,
        **STACKED_EXPERTS,
        "ffn.norm": "pre_mlp_layernorm",
        "ffn.post_norm": "post_mlp_layernorm",
        "ffn.router": "mlp.router.gate",
        "ffn.router.correction": "mlp.expert_bias",
    },
    gguf_keys=GROUPED_MOE_GGUF_KEYS,
    gguf_defaults={"mup_enabled": True},
)
