"""AFMoE (Trinity): attention with an output gate, sandwich norms, and experts by sigmoid scores."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Rope
from mrs.architecture.readers.layer_reader import (
    decoder,
    read_attention,
    read_heads,
    read_mlp,
    read_norm,
    windows,
)
from mrs.architecture.readers.moe_reader import read_expert, read_router
from mrs.architecture.readers.rope_reader import read_rope
from mrs.architecture.tensor_names import STACKED_EXPERTS
from mrs.families.deepseek_v2 import NAMES


def read(config: Config) -> ModelSpec:
    norm, mlp, moe = read_norm(config, default=1e-5), read_mlp(config), _read_moe(config)
    rope, dense = read_rope(config, read_heads(config)[2]), config.integer("num_dense_layers", 1)
    period = config.positive("global_attn_every_n_layers", 4)
    layers = [
        Layer(
            _read_attention(config, rope, window),
            mlp if index < dense else moe,
            norm,
            style="sandwich",
        )
        for index, window in enumerate(windows(config, period=period))
    ]
    width = config.positive("hidden_size")
    scale = width**0.5 if config.flag("mup_enabled", False) else 1.0
    return decoder(config, "afmoe", layers, norm, embedding_scale=scale)


def _read_attention(config: Config, rope: Rope, window: int | None) -> Attention:
    bias = config.flag("attention_bias", False)
    return read_attention(
        config,
        rope=rope if window else None,
        window=window,
        qk_norm=read_norm(config, default=1e-5),
        output_gate="sigmoid",
        qkv_bias=bias,
        out_bias=bias,
    )


def _read_moe(config: Config) -> Moe:
    router = read_router(
        config,
        scoring="sigmoid",
        score_correction_bias=True,
        norm_topk_prob=config.flag("route_norm", True),
        scale=config.number("route_scale", 1.0),
    )
    expert, count = read_expert(config), config.positive("num_shared_experts", 2)
    size = config.positive("moe_intermediate_size") * count
    shared = read_expert(Config({**config.values, "moe_intermediate_size": size}, config.where))
    return Moe(router, expert, shared=shared)


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
        **NAMES,
        **STACKED_EXPERTS,
        "mixer.gate": "self_attn.gate_proj",
        "ffn.norm": "pre_mlp_layernorm",
        "ffn.post_norm": "post_mlp_layernorm",
        "ffn.router": "mlp.router.gate",
        "ffn.router.correction": "mlp.expert_bias",
    },
    gguf={"mixer.gate": "attn_gate"},
    gguf_keys={
        "num_dense_layers": "leading_dense_block_count",
        "num_shared_experts": "expert_shared_count",
        "route_norm": "expert_weights_norm",
        "route_scale": "expert_weights_scale",
    },
    gguf_defaults={"mup_enabled": True},
)
