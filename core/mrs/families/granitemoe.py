"""Granite 3 MoE: Granite with experts in place of the MLP, and in some sizes a shared one."""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.granite import (
    MULTIPLIERS_GGUF_KEYS,
    read_multipliers,
    read_scaled_attention,
    stack_scaled_layers,
)
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.config import expert_count, read_expert, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, mixers = read_norm(config), [read_scaled_attention(config)] * layer_count(config)
    layers = stack_scaled_layers(config, mixers, read_wide_moe(config), norm)
    return decoder(config, "granitemoe", layers, norm, **read_multipliers(config))


def read_wide_moe(config: Config) -> Mlp | Moe:
    key, size = "shared_intermediate_size", "intermediate_size"
    if not expert_count(config):
        return read_expert(config, config.spelling(key, size))
    expert = read_expert(config, size)
    shared = read_expert(config, key) if config.integer(key, 0) else None
    return Moe(read_router(config, norm_topk_prob=True), expert, shared=shared)


def linear_mlp_names(slot: str, module: str) -> Mapping[str, str]:
    """The names of an MLP whose gate and up matrices are one tensor."""
    return {f"{slot}.gate_up": f"{module}.input_linear", f"{slot}.down": f"{module}.output_linear"}


#: Granite's experts and shared MLP, each with gate and up in one tensor, of all experts.
NAMES: Mapping[str, str] = {
    **linear_mlp_names("ffn.shared", "shared_mlp"),
    **linear_mlp_names("ffn.experts.{expert}", "block_sparse_moe"),
    "ffn.router": "block_sparse_moe.router.layer",
    # As newer files have it.
    "ffn.experts.{expert}.gate_up.weight": "block_sparse_moe.experts.gate_up_proj",
    "ffn.experts.{expert}.down.weight": "block_sparse_moe.experts.down_proj",
    "ffn.router.weight": "block_sparse_moe.router.weight",
}


DEFAULTS = {"attention_multiplier": 1.0, "num_local_experts": 8}

FAMILY = Family(
    "granitemoe",
    read,
    gguf_arch="granitemoe",
    aliases=("granitemoeshared",),
    defaults=DEFAULTS,
    safetensors=NAMES,
    gguf_keys={
        **MULTIPLIERS_GGUF_KEYS,
        "shared_intermediate_size": "expert_shared_feed_forward_length",
    },
    gguf_rope_interleaved=True,
)
