"""Qwen 3.5 and later: Qwen 3 Next with an MLP, and separate projections in its delta nets."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.delta_net_names import GGUF_SEPARATE_DELTA_NET, SEPARATE_DELTA_NET
from mrs.architecture.readers.delta_net_reader import DELTA_NET_DEFAULTS, DELTA_NET_GGUF_KEYS
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import read_mlp
from mrs.families.qwen3_next import read_hybrid


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
    # The multi-token prediction layer.
    ignored=("mtp.",),
)
