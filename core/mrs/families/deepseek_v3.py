"""DeepSeek V3 and R1: V2 with sigmoid scores and experts chosen by groups."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.families.deepseek_v2 import DEFAULTS, NAMES, read_deepseek


def read(config: Config) -> ModelSpec:
    return read_deepseek(config, "deepseek_v3")


FAMILY = Family(
    "deepseek_v3",
    read,
    defaults={
        **DEFAULTS,
        "scoring_func": "sigmoid",
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
    },
    safetensors=NAMES,
    # The multi-token prediction layer.
    ignored=("model.layers.{layers}.",),
)
