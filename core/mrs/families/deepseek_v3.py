"""DeepSeek V3 and R1, and Kimi K2: V2 with sigmoid scores and experts chosen by groups."""

from __future__ import annotations

from mrs.architecture.draft_head import NEXTN
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.deepseek_v2 import read_deepseek
from mrs.layers.latent_attention.config import MLA_DEFAULTS
from mrs.layers.mlp.spec import SHARED_EXPERTS


def read(config: Config) -> ModelSpec:
    return read_deepseek(config, "deepseek_v3")


FAMILY = Family(
    "deepseek_v3",
    read,
    aliases=("kimi_k2",),
    defaults={
        **MLA_DEFAULTS,
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
    safetensors=SHARED_EXPERTS,
    head=NEXTN,
    ignored=("model.layers.{layers}.",),
)
