"""Nemotron-H and Nemotron 3: layers of one module each, Mamba 2, attention, MLP or experts."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mamba2_names import BACKBONE, GGUF_MAMBA2
from mrs.architecture.names.mlp_names import mlp_names, moved_names
from mrs.architecture.readers.grouped_moe_reader import GROUPED_MOE_GGUF_KEYS
from mrs.architecture.readers.layer_reader import decoder, read_norm
from mrs.architecture.readers.mamba2_reader import MAMBA2_GGUF_KEYS
from mrs.architecture.readers.single_module_reader import (
    SINGLE_MODULE_GGUF_KEYS,
    read_single_modules,
)


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, "layer_norm_epsilon", default=config.number("layer_norm_eps", 1e-5))
    return decoder(config, "nemotron_h", read_single_modules(config, norm), norm)


FAMILY = Family(
    "nemotron_h",
    read,
    gguf_arch="nemotron_h",
    other_gguf_archs=("nemotron_h_moe",),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 21504,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "n_routed_experts": 8,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
    },
    safetensors={
        **BACKBONE,
        **moved_names("self_attn", "mixer"),
        **moved_names("mlp", "mixer"),
        **mlp_names("ffn.shared", "mixer.shared_experts"),
        "ffn.norm": "norm",
    },
    gguf={**GGUF_MAMBA2, "ffn.norm": "attn_norm"},
    gguf_keys={**GROUPED_MOE_GGUF_KEYS, **MAMBA2_GGUF_KEYS, **SINGLE_MODULE_GGUF_KEYS},
    gguf_defaults={"time_step_min": 0.0},
    # The multi-token prediction layers.
    ignored=("mtp.",),
)
