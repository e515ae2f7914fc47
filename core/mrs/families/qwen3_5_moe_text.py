"""Qwen 3.5 MoE: Qwen 3.5 with a mixture of experts and a gated shared expert in every layer."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import layer_count
from mrs.architecture.readers.moe_reader import read_expert, read_router
from mrs.architecture.tensor_names import STACKED_EXPERTS
from mrs.families import qwen3_5_text, qwen3_next
from mrs.families.qwen3_5_text import read_hybrid


def read(config: Config) -> ModelSpec:
    moe = Moe(
        read_router(config, norm_topk_prob=True),
        read_expert(config),
        shared=read_expert(config, "shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return read_hybrid(config, "qwen3_5_moe_text", [moe] * layer_count(config))


FAMILY = Family(
    "qwen3_5_moe_text",
    read,
    gguf_arch="qwen35moe",
    aliases=("qwen3_5_moe",),
    defaults={
        **qwen3_5_text.DEFAULTS,
        "num_key_value_heads": 2,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    safetensors={**qwen3_5_text.NAMES, **STACKED_EXPERTS},
    gguf=qwen3_5_text.GGUF_NAMES,
    gguf_keys=qwen3_next.GGUF_KEYS,
    norm_plus_one=True,
    ignored=("mtp.",),
)
