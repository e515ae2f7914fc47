"""Read layers that have a single module each, a mixer or a feed-forward network."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mixer import NoFeedForward, NoMixer
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_reader import read_attention, read_mlp
from mrs.architecture.readers.mamba2_reader import read_mamba2
from mrs.architecture.readers.moe_reader import expert_count, read_expert, read_sigmoid_router
from mrs.errors import Unsupported

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
_DEFAULT_LAYERS = ("linear_attention", "moe", "full_attention", "mlp")


#: Config key -> metadata key of GGUF files.
SINGLE_MODULE_GGUF_KEYS = {
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "moe_latent_size": "moe_latent_size",
}


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
