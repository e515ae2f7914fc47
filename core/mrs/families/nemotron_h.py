"""Nemotron-H and Nemotron 3: layers of one module each, Mamba 2, attention, MLP or experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from mrs.architecture.decoder_config import decoder
from mrs.architecture.draft_head import HeadFiles
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.tensor_names import SAFETENSORS
from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.layers.attention.config import read_attention
from mrs.layers.empty.spec import NoFeedForward, NoMixer
from mrs.layers.layer import Layer
from mrs.layers.mamba2.config import MAMBA2_GGUF_KEYS, read_mamba2
from mrs.layers.mamba2.spec import BACKBONE, GGUF_MAMBA2
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import mlp_names
from mrs.layers.moe.config import (
    GROUPED_MOE_GGUF_KEYS,
    expert_count,
    read_expert,
    read_sigmoid_router,
)
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm

#: What each layer is, in all spellings of configs; older ones have a letter for each layer.
_KINDS = {
    "M": "state",
    "mamba": "state",
    "linear_attention": "state",
    "*": "attention",
    "attention": "attention",
    "full_attention": "attention",
    "-": "mlp",
    "mlp": "mlp",
    "E": "moe",
    "moe": "moe",
}
_KEYS = ("layer_types", "layers_block_type", "hybrid_override_pattern")
#: The modules of a draft head.
_HEAD_KINDS = ("attention", "moe")
_DEFAULT_LAYERS = ("linear_attention", "moe", "full_attention", "mlp")
#: Config key -> metadata key of GGUF files.
SINGLE_MODULE_GGUF_KEYS = {
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "moe_latent_size": "moe_latent_size",
}


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, "layer_norm_epsilon", default=config.number("layer_norm_eps", 1e-5))
    return decoder(config, "nemotron_h", read_single_modules(config, norm), norm)


def read_single_modules(config: Config, norm: Norm) -> list[Layer]:
    """All layers; the config may give their kinds and not their number."""
    kinds = _module_kinds(config)
    config = config.changed({"num_hidden_layers": len(kinds)})
    of_kind = {kind: _read_layer(config, kind, norm) for kind in set(kinds)}
    return [of_kind[kind] for kind in kinds]


def _read_layer(config: Config, kind: str, norm: Norm) -> Layer:
    if kind == "state":
        # The models have no upper limit, whatever `time_step_limit` says.
        limits = {"least_step": config.number("time_step_min", 0.001), "most_step": inf}
        return Layer(read_mamba2(config, norm=norm, **limits), NoFeedForward(), norm)
    if kind == "attention":
        return Layer(read_attention(config, rope=None), NoFeedForward(), norm)
    bias = config.flag("mlp_bias", False)
    fields: dict[str, Any] = {
        "activation": config.activation("relu2", "mlp_hidden_act"),
        "gated": False,
    }
    if kind == "mlp":
        return Layer(NoMixer(), read_mlp(config, bias=bias, **fields), norm)
    moe = Moe(
        read_sigmoid_router(
            config,
            n_group=config.positive("n_group", 1),
            topk_group=config.positive("topk_group", 1),
            group_score_experts=2,
        ),
        read_expert(config, **fields),
        shared=read_expert(config, "moe_shared_expert_intermediate_size", bias=bias, **fields),
        latent=config.positive("moe_latent_size") if config.has("moe_latent_size") else None,
        latent_bias=bias,
    )
    return Layer(NoMixer(), moe, norm)


def _module_kinds(config: Config) -> Sequence[str]:
    """The kind of each layer: `state`, `attention`, `mlp` or `moe`."""
    if config.has("num_key_value_heads_by_layer"):  # in GGUF files, where it is 0 for the others
        feed_forward = "moe" if expert_count(config) else "mlp"
        heads = config.sequence("num_key_value_heads_by_layer")
        sizes = config.sequence("intermediate_size_by_layer")
        return [
            "attention" if count else feed_forward if size else "state"
            for count, size in zip(heads, sizes, strict=True)
        ]
    key = config.spelling(*_KEYS)
    kinds = config.values.get(key)
    if not isinstance(kinds, str):
        kinds = config.sequence(key, _DEFAULT_LAYERS)
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown or not kinds:
        raise Unsupported(f"layers of type {unknown[:1]} are not supported", where=config.where)
    return [_KINDS[kind] for kind in kinds]


def moved_names(module: str, to: str) -> Mapping[str, str]:
    """The usual names of all that is in a module, if the file calls this module `to`."""
    return {
        slot: to + name.removeprefix(module)
        for slot, name in SAFETENSORS.items()
        if name.startswith(f"{module}.")
    }


def _head_layer(target: ModelSpec, config: Config) -> Layer | None:
    """Attention and experts, which files have as two layers of one module each."""
    key = config.spelling("mtp_layers_block_type", "mtp_hybrid_override_pattern")
    given = config.values.get(key) or _HEAD_KINDS
    kinds = [_KINDS.get(str(each)) for each in given] if isinstance(given, Sequence) else []
    if kinds != [*_HEAD_KINDS] or target.norm is None:
        return None
    config = config.changed({"num_hidden_layers": len(target.layers)})
    attention, experts = (_read_layer(config, each, target.norm) for each in _HEAD_KINDS)
    return replace(attention, feed_forward=experts.feed_forward)


_NAMES = {
    **BACKBONE,
    **moved_names("self_attn", "mixer"),
    **moved_names("mlp", "mixer"),
    **mlp_names("ffn.shared", "mixer.shared_experts"),
    "ffn.norm": "norm",
}
_HEAD_NAMES = {
    **{slot: f"0.{name}" for slot, name in _NAMES.items() if slot.startswith("mixer.")},
    **{slot: f"1.{name}" for slot, name in _NAMES.items() if slot.startswith("ffn.")},
    "layer": "mtp.layers.",
    "join": "{layer}0.eh_proj",
    "join.token_norm": "{layer}0.enorm",
    "join.state_norm": "{layer}0.hnorm",
    "norm": "{layer}1.final_layernorm",
}

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
    safetensors=_NAMES,
    gguf={**GGUF_MAMBA2, "ffn.norm": "attn_norm"},
    gguf_keys={**GROUPED_MOE_GGUF_KEYS, **MAMBA2_GGUF_KEYS, **SINGLE_MODULE_GGUF_KEYS},
    gguf_defaults={"time_step_min": 0.0},
    head=HeadFiles(_HEAD_NAMES, layer=_head_layer),
    ignored=("mtp.",),
)
