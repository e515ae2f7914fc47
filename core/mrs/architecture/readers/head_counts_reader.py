"""Read attention with a softplus gate, of which each layer has its own number of heads."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.readers.layer_kinds_reader import (
    FULL,
    SLIDING,
    layer_count,
    layer_types,
    read_window,
)
from mrs.architecture.readers.layer_reader import biased_attention, read_head_rope, read_norm


def read_gated_heads(config: Config) -> list[Attention]:
    """The attention of each layer; without a list of types all attend to all tokens."""
    kinds = [FULL] * layer_count(config)
    if config.has("layer_types"):
        kinds = [*layer_types(config, FULL, SLIDING)]
    return [
        _read_attention(config.changed({"num_attention_heads": heads}), kind)
        for heads, kind in zip(_head_counts(config), kinds, strict=True)
    ]


def _head_counts(config: Config) -> list[int]:
    key, count = "num_attention_heads_per_layer", layer_count(config)
    if not config.has(key):
        return [config.positive("num_attention_heads")] * count
    return list(map(int, config.numbers(key, count, above=0)))


def _read_attention(config: Config, kind: str) -> Attention:
    gating = config.values.get("gating", True)
    return biased_attention(
        config,
        rope=read_head_rope(config, layer_type=kind),
        window=read_window(config) if kind == SLIDING else None,
        qk_norm=read_norm(config),
        output_gate="softplus",
        gates_heads=gating is True or gating == "per-head",
    )
