"""gpt-oss: attention sinks, sliding windows on every other layer, experts with biases."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import windows
from mrs.layers.attention.config import read_attention, read_head_rope
from mrs.layers.layer import Layer
from mrs.layers.moe.config import read_expert, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    config.allow_only("swiglu_alpha", 1.702)
    norm, bias = read_norm(config, default=1e-5), config.flag("attention_bias", True)
    rope = read_head_rope(config, default_base=150000.0)
    fields = {"rope": rope, "qkv_bias": bias, "out_bias": bias, "sinks": True}
    limit = config.positive_number("swiglu_limit", 7.0)
    expert = read_expert(
        config, "intermediate_size", activation="clamped_swiglu", clamp=limit, bias=True
    )
    moe = Moe(read_router(config, bias=True, norm_topk_prob=True), expert)
    layers = [
        Layer(read_attention(config, window=window, **fields), moe, norm)
        for window in windows(config, period=2)
    ]
    return decoder(config, "gpt_oss", layers, norm)


FAMILY = Family(
    "gpt_oss",
    read,
    gguf_arch="gpt-oss",
    gguf_defaults={"truncate": False},  # as the published models have it
    defaults={
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "intermediate_size": 2880,
        "head_dim": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
    },
    safetensors={
        "ffn.router": "mlp.router",
        "ffn.experts.{expert}.gate_up_pairs.weight": "mlp.experts.gate_up_proj^T",
        "ffn.experts.{expert}.gate_up_pairs.bias": "mlp.experts.gate_up_proj_bias",
        "ffn.experts.{expert}.down.weight": "mlp.experts.down_proj^T",
        "ffn.experts.{expert}.down.bias": "mlp.experts.down_proj_bias",
    },
    gguf={"ffn.norm": "post_attention_norm"},
)
