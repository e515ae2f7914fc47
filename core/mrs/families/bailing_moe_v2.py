"""Ling 2 (Bailing MoE V2): rope in half of a head, and DeepSeek V3's experts."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import SHARED_EXPERTS
from mrs.layers.moe.config import GROUPED_MOE_GGUF_KEYS, mixed_layers, read_grouped_moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    return read_bailing(config, "bailing_moe_v2")


def read_bailing(config: Config, family: str) -> ModelSpec:
    # Ling 1 has the same type in config.json, with softmax scores and a normalized head.
    config.allow_only("score_function", "sigmoid")
    config.require_off("norm_head", "use_bias", "use_sliding_window")
    norm = read_norm(config)
    has_norms = config.flag("use_qk_norm", config.flag("has_qk_norm", False))
    bias = config.flag("use_qkv_bias", config.flag("attention_bias", False))
    attention = read_attention(config, qk_norm=norm if has_norms else None, qkv_bias=bias)
    feed_forward = mixed_layers(config, read_grouped_moe(config), read_mlp(config))
    layers = [Layer(attention, ffn, norm) for ffn in feed_forward]
    return decoder(config, family, layers, norm)


NAMES = {
    **SHARED_EXPERTS,
    "embedding": "model.word_embeddings",
    "mixer.qkv": "attention.query_key_value",
    "mixer.o": "attention.dense",
    "mixer.q_norm": "attention.query_layernorm",
    "mixer.k_norm": "attention.key_layernorm",
    "ffn.router.correction": "mlp.gate.expert_bias",
}

FAMILY = Family(
    "bailing_moe_v2",
    read,
    gguf_arch="bailingmoe2",
    aliases=("bailing_moe",),
    defaults={
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 16_384,
        "use_qk_norm": True,
        "scoring_func": "sigmoid",
        "num_experts": 16,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
    },
    safetensors=NAMES,
    gguf_keys=GROUPED_MOE_GGUF_KEYS,
    ignored=("model.layers.{layers}.", "blk.{layers}."),
)
