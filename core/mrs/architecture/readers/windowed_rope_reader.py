"""Read attention whose layers with a window have rope, and the others none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.readers.layer_kinds_reader import layer_count, read_window, windows
from mrs.architecture.readers.layer_reader import biased_attention, read_head_rope


def read_windowed_rope(
    config: Config, local: Sequence[int | None], *, interleaved: bool = False, **changes: Any
) -> list[Attention]:
    """The attention of layers with the windows `local`; `changes` override its fields."""
    rope = read_head_rope(config, interleaved=interleaved)
    return [
        biased_attention(config, rope=rope if window else None, window=window, **changes)
        for window in local
    ]


def read_periodic_rope(config: Config, **changes: Any) -> list[Attention]:
    """The same, with windows in the layers that are listed, or in all but every fourth one.

    `sliding_window_pattern` is another period. In a model without windows all layers have rope.
    """
    if read_window(config) is None:
        return [biased_attention(config, **changes)] * layer_count(config)
    return read_windowed_rope(config, _windows(config), **changes)


def _windows(config: Config) -> list[int | None]:
    if config.has("layer_types"):
        return windows(config)
    return windows(config, period=config.positive("sliding_window_pattern", 4))
