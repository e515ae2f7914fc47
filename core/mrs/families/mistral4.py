"""Mistral Small 4: DeepSeek's attention and experts, with softmax scores and scaled queries."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families import ministral3
from mrs.families.deepseek_v2 import GGUF_KEYS, read_deepseek
from mrs.layers.mlp.spec import SHARED_EXPERTS, STACKED_EXPERTS
from mrs.layers.rope.config import with_default_rope


def read(config: Config) -> ModelSpec:
    config = with_default_rope(config, DEFAULT_ROPE)
    return read_deepseek(config, "mistral4", group_score_experts=2)


DEFAULT_ROPE = {
    **ministral3.DEFAULT_ROPE,
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
}

FAMILY = Family(
    "mistral4",
    read,
    gguf_arch="mistral4",
    defaults={
        "q_lora_rank": 1024,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
    },
    safetensors={**SHARED_EXPERTS, **STACKED_EXPERTS},
    gguf_keys={**GGUF_KEYS, "llama_4_scaling_beta": "attention.temperature_scale"},
)
