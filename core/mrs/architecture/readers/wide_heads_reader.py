"""Read attention whose heads are wider in layers that attend to all tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.readers.layer_kinds_reader import FULL, SLIDING, windows
from mrs.architecture.readers.layer_reader import biased_attention, read_head_rope, read_norm
from mrs.architecture.readers.moe_reader import expert_count
from mrs.architecture.readers.rope_reader import with_default_rope
from mrs.architecture.readers.shared_layers_reader import SHARED_LAYERS_GGUF_KEYS

#: The key that shows that a config comes from a GGUF file.
_SIGN = "rope_local_base_freq"
_KV_HEADS = {SLIDING: "num_key_value_heads", FULL: "num_global_key_value_heads"}
_DEFAULT_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
#: Config key -> metadata key of GGUF files.
WIDE_HEADS_GGUF_KEYS = {
    **SHARED_LAYERS_GGUF_KEYS,
    "head_dim": "attention.key_length_swa",
    "global_head_dim": "attention.key_length",
}


def read_wide_heads(config: Config) -> list[Attention]:
    """The attention of each layer of a `usual_config`; every sixth and the last have no window."""
    config = with_default_rope(config, _DEFAULT_ROPE)
    local, full = _read_attention(config, SLIDING), _read_attention(_full_config(config), FULL)
    return [full if window is None else local for window in [*windows(config, period=6)[:-1], None]]


def usual_config(config: Config) -> Config:
    """The config under the keys of config.json, if it comes from a GGUF file."""
    if not config.has(_SIGN):
        return config
    # Both kinds of layers rotate whole heads, in part by factors that are almost 0.
    bases = config.number(_SIGN), config.positive_number("rope_theta")
    values: dict[str, Any] = {
        "enable_moe_block": expert_count(config) > 0,
        "rope_parameters": {
            SLIDING: {"rope_theta": bases[0]},
            FULL: {"rope_type": "factors", "rope_theta": bases[1]},
        },
    }
    sizes = config.sequence("intermediate_size_by_layer", ())
    if sizes and min(sizes) < max(sizes):
        values |= {"intermediate_size": min(sizes), "use_double_wide_mlp": True}
    heads = config.sequence("num_key_value_heads_by_layer", ())
    for count, kind in zip(heads, config.sequence("layer_types", ()), strict=False):
        values[_KV_HEADS[kind]] = count
    return config.without("rotary_dim").changed(values)


def _full_config(config: Config) -> Config:
    """The config with the head sizes of layers with full attention."""
    per_layer = config.mapping("per_layer_config")
    if per_layer:
        own = (sizes for sizes in per_layer.values() if isinstance(sizes, Mapping))
        return config.changed(next(own, {}))
    sizes: dict[str, Any] = {"head_dim": config.positive("global_head_dim", 512)}
    kv_heads = config.values.get(_KV_HEADS[FULL])
    if kv_heads and config.flag("attention_k_eq_v", False):
        sizes["num_key_value_heads"] = kv_heads
    return config.changed(sizes)


def _read_attention(config: Config, kind: str) -> Attention:
    is_full, norm = kind == FULL, read_norm(config)
    return biased_attention(
        config,
        scale=1.0,
        rope=read_head_rope(config, layer_type=kind),
        window=None if is_full else config.positive("sliding_window"),
        qk_norm=norm,
        value_norm=norm,
        always_causal=is_full,
        values_are_keys=is_full and config.flag("attention_k_eq_v", False),
    )
