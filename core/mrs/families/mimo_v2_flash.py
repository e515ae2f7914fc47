"""MiMo V2 Flash: narrow heads of values, sinks and more keys in windows, DeepSeek V3's experts."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.grouped_moe_reader import GROUPED_MOE_GGUF_KEYS, read_grouped_moe
from mrs.architecture.readers.layer_reader import decoder, read_mlp, read_norm, stack_layers
from mrs.architecture.readers.moe_reader import mixed_layers
from mrs.architecture.readers.value_heads_reader import (
    VALUE_HEADS_GGUF_KEYS,
    read_value_heads,
    with_listed_kinds,
)


def read(config: Config) -> ModelSpec:
    config.require_off("n_shared_experts")
    config = with_listed_kinds(config.renamed({"layernorm_epsilon": "rms_norm_eps"}))
    norm, moe = read_norm(config, default=1e-5), read_grouped_moe(config)
    feed_forward = mixed_layers(config, moe, read_mlp(config), first=1)
    layers = stack_layers(read_value_heads(config), feed_forward, norm)
    return decoder(config, "mimo_v2_flash", layers, norm)


FAMILY = Family(
    "mimo_v2_flash",
    read,
    gguf_arch="mimo2",
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "attention_value_scale": 0.707,
        "partial_rotary_factor": 0.334,
        "sliding_window": 129,
        "max_position_embeddings": 131_072,
        "scoring_func": "sigmoid",
        "n_routed_experts": 256,
        "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
    safetensors={"mixer.sinks": "self_attn.attention_sink_bias"},
    gguf_keys={**GROUPED_MOE_GGUF_KEYS, **VALUE_HEADS_GGUF_KEYS},
    # Older files lack the factor of values, which the published model has.
    gguf_defaults={"norm_topk_prob": True, "attention_value_scale": 0.707},
    ignored=("model.mtp.",),
)
