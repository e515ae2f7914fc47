"""Sarvam 105B: DeepSeek V3 with other sizes."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.deepseek_v2 import read_deepseek
from mrs.families.deepseek_v3 import FAMILY as DEEPSEEK
from mrs.layers.mlp.spec import SHARED_EXPERTS

_EXPERTS = ("n_routed_experts", "n_shared_experts")


def read(config: Config) -> ModelSpec:
    return read_deepseek(config, "sarvam_mla")


FAMILY = Family(
    "sarvam_mla",
    read,
    defaults={
        **{key: value for key, value in DEEPSEEK.defaults.items() if key not in _EXPERTS},
        # The first files name them so.
        "num_experts": 128,
        "n_shared_experts": 1,
        "q_lora_rank": None,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    safetensors=SHARED_EXPERTS,
)
