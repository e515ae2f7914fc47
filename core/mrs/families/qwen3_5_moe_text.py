"""Qwen 3.5 MoE: Qwen 3.5 with a mixture of experts and a gated shared expert in every layer."""

from __future__ import annotations

from mrs.architecture.draft_head import MTP
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.qwen3_5_text import DEFAULTS
from mrs.families.qwen3_next import read_hybrid
from mrs.layers.gated_delta_net.config import DELTA_NET_GGUF_KEYS
from mrs.layers.gated_delta_net.spec import GGUF_SEPARATE_DELTA_NET, SEPARATE_DELTA_NET
from mrs.layers.mlp.spec import STACKED_EXPERTS
from mrs.layers.moe.config import read_gated_moe


def read(config: Config) -> ModelSpec:
    moes = [read_gated_moe(config, norm_topk_prob=True)] * layer_count(config)
    return read_hybrid(config, "qwen3_5_moe_text", moes, tiled=True)


FAMILY = Family(
    "qwen3_5_moe_text",
    read,
    gguf_arch="qwen35moe",
    aliases=("qwen3_5_moe",),
    defaults={
        **DEFAULTS,
        "num_key_value_heads": 2,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    safetensors={**SEPARATE_DELTA_NET, **STACKED_EXPERTS},
    gguf=GGUF_SEPARATE_DELTA_NET,
    gguf_keys=DELTA_NET_GGUF_KEYS,
    norm_plus_one="all",
    head=MTP,
    ignored=("mtp.",),
)
