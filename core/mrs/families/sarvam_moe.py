"""Sarvam 30B: Ling 2 with rope in the whole head."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.bailing_moe_v2 import NAMES, read_bailing


def read(config: Config) -> ModelSpec:
    return read_bailing(config, "sarvam_moe")


FAMILY = Family(
    "sarvam_moe",
    read,
    # Its GGUF files are those of `bailing_moe_v2`.
    defaults={
        "rope_theta": 8e6,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "use_qk_norm": True,
        "scoring_func": "sigmoid",
        "num_experts": 128,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "num_experts_per_tok": 6,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
    },
    safetensors=NAMES,
)
