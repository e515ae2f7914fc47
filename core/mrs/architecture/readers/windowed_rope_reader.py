"""Read attention whose layers with a window have rope, and the others none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.readers.layer_reader import biased_attention, read_head_rope


def read_windowed_rope(
    config: Config, windows: Sequence[int | None], *, interleaved: bool = False, **changes: Any
) -> list[Attention]:
    """The attention of layers with these windows; `changes` override its fields."""
    rope = read_head_rope(config, interleaved=interleaved)
    return [
        biased_attention(config, rope=rope if window else None, window=window, **changes)
        for window in windows
    ]
