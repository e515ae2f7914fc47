"""Read attention with rope in layers with a window, whose pattern differs in the first layers."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.config import Config
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.readers.layer_kinds_reader import (
    FULL,
    SLIDING,
    layer_count,
    layer_types,
    read_window,
)
from mrs.architecture.readers.layer_reader import biased_attention, read_head_rope
from mrs.architecture.readers.moe_reader import expert_layers

_PREFIX_PERIOD = "prefix_dense_sliding_window_pattern"


def read_prefix_mixers(config: Config) -> list[Attention]:
    """The attention of each layer.

    Layers that attend to all tokens have no rope, unless they are dense and all of those do.
    """
    rope, window = read_head_rope(config, interleaved=True), read_window(config)
    rotates_dense = config.positive(_PREFIX_PERIOD, 1) == 1
    mixers = []
    for kind, has_experts in zip(_kinds(config), expert_layers(config), strict=True):
        is_local = kind == SLIDING
        rotates = is_local or (rotates_dense and not has_experts)
        fields = {"rope": rope if rotates else None, "window": window if is_local else None}
        mixers.append(biased_attention(config, **fields))
    return mixers


def _kinds(config: Config) -> Sequence[str]:
    """The kind of each layer, listed or by a period of the first and one of later layers."""
    if config.has("layer_types"):
        return layer_types(config, FULL, SLIDING)
    dense, count = config.integer("first_k_dense_replace", 0), layer_count(config)
    first = _periodic(min(dense, count), config.positive(_PREFIX_PERIOD, 1))
    return first + _periodic(count - len(first), config.positive("sliding_window_pattern", 4))


def _periodic(count: int, period: int) -> list[str]:
    """Every `period`-th of so many layers attends to all tokens."""
    return [SLIDING if (layer + 1) % period else FULL for layer in range(count)]
