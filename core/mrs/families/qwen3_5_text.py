"""Qwen 3.5 and later: Qwen 3 Next with an MLP, and separate projections in its delta nets."""

from __future__ import annotations

from mrs.architecture.draft_head import MTP
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.qwen3_next import read_hybrid
from mrs.layers.gated_delta_net.config import DELTA_NET_DEFAULTS, DELTA_NET_GGUF_KEYS
from mrs.layers.gated_delta_net.spec import GGUF_SEPARATE_DELTA_NET, SEPARATE_DELTA_NET
from mrs.layers.mlp.config import read_mlp


def read(config: Config) -> ModelSpec:
    mlps = [read_mlp(config)] * layer_count(config)
    return read_hybrid(config, "qwen3_5_text", mlps, tiled=True)


DEFAULTS = {**DELTA_NET_DEFAULTS, "num_attention_heads": 16}

FAMILY = Family(
    "qwen3_5_text",
    read,
    gguf_arch="qwen35",
    aliases=("qwen3_5",),
    defaults={**DEFAULTS, "num_key_value_heads": 4},
    safetensors=SEPARATE_DELTA_NET,
    gguf=GGUF_SEPARATE_DELTA_NET,
    gguf_keys=DELTA_NET_GGUF_KEYS,
    norm_plus_one="all",
    head=MTP,
    ignored=("mtp.",),
)
