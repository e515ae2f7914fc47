"""GLM 4.7 Flash: DeepSeek V3 with other sizes."""

from __future__ import annotations

from mrs.architecture.draft_head import NEXTN
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.deepseek_v2 import read_deepseek
from mrs.layers.mlp.spec import SHARED_EXPERTS


def read(config: Config) -> ModelSpec:
    return read_deepseek(config, "glm4_moe_lite")


FAMILY = Family(
    "glm4_moe_lite",
    read,
    defaults={
        "rms_norm_eps": 1e-5,
        "scoring_func": "sigmoid",
        "q_lora_rank": 768,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.8,
        "first_k_dense_replace": 1,
    },
    safetensors=SHARED_EXPERTS,
    head=NEXTN,
    ignored=("model.layers.{layers}.",),
)
