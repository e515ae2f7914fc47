"""Read attention whose heads of values have a size of their own, and sinks in some layers."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.readers.layer_kinds_reader import (
    FULL,
    SLIDING,
    every,
    layer_count,
    of_layers,
    windows,
)
from mrs.architecture.readers.layer_reader import read_attention, read_head_rope

#: Every so many layers, and the first one, attend to all tokens unless the config lists them.
_PERIOD = 6
#: Keys of the published config: layers with a window, and layers with experts, have a 1.
_PATTERNS = {
    "hybrid_layer_pattern": ("layer_types", (FULL, SLIDING)),
    "moe_layer_freq": ("mlp_layer_types", ("dense", "sparse")),
}
#: Keys of layers with a window, which must be those of the others.
_SAME = {
    "swa_num_attention_heads": "num_attention_heads",
    "swa_head_dim": "head_dim",
    "swa_v_head_dim": "v_head_dim",
}
#: Config key -> metadata key of GGUF files.
VALUE_HEADS_GGUF_KEYS = {
    "v_head_dim": "attention.value_length",
    "attention_value_scale": "attention.value_scale",
}


def with_listed_kinds(config: Config) -> Config:
    """The config with the kinds of layers as transformers lists them."""
    listed = {}
    for key, (usual, kinds) in _PATTERNS.items():
        if config.has(key) and not config.has(usual):
            listed[usual] = [kinds[each == 1] for each in of_layers(config, key)]
    return config.without(*_PATTERNS).changed(listed)


def read_value_heads(config: Config) -> list[Attention]:
    """The attention of each layer; those with a window have more heads of keys, and sinks."""
    for own, other in _SAME.items():
        config.allow_only(own, config.values.get(other))
    if config.has("sliding_window_size"):  # as published, without the token itself
        size = config.integer("sliding_window_size")
        config = config.changed({"sliding_window": size + 1})
    local, heads = _windows(config), config.positive("num_key_value_heads")
    more = config.positive("swa_num_key_value_heads", 2 * heads)
    counts = [heads if window is None else more for window in local]
    if config.has("num_key_value_heads_by_layer"):  # in GGUF files
        counts = [*of_layers(config, "num_key_value_heads_by_layer")]
    return [
        _read_attention(config.changed({"num_key_value_heads": count}), window)
        for count, window in zip(counts, local, strict=True)
    ]


def _windows(config: Config) -> list[int | None]:
    if config.has("layer_types"):
        return windows(config)
    whole = [is_last or not layer for layer, is_last in enumerate(every(config, _PERIOD))]
    kinds = [FULL if each else SLIDING for each in whole[: layer_count(config)]]
    return windows(config.changed({"layer_types": kinds}))


def _read_attention(config: Config, window: int | None) -> Attention:
    is_local = window is not None
    rope = read_head_rope(config, default_base=5e6, layer_type=FULL)
    if is_local and SLIDING in config.mapping("rope_parameters"):
        rope = read_head_rope(config, layer_type=SLIDING)
    elif is_local:
        key = config.spelling("rope_local_base_freq", "swa_rope_theta")
        rope = replace(rope, scaling=None, base=config.positive_number(key, 1e4, above=1))
    return read_attention(
        config,
        rope=rope,
        window=window,
        qkv_bias=config.flag("attention_bias", False),
        sinks=config.flag(f"add_{'swa' if is_local else 'full'}_attention_sink_bias", is_local),
        value_head_dim=config.positive("v_head_dim"),
        value_scale=config.number("attention_value_scale", 1.0),
    )
