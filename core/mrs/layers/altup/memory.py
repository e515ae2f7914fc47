"""Bytes of making and joining residual streams; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrs.layers.forward_pass import ForwardShape

if TYPE_CHECKING:
    from mrs.layers.altup.spec import AltUp


def streams_bytes(altup: AltUp | None, hidden_size: int, shape: ForwardShape, rows: int) -> int:
    """Peak while streams are made of T embeddings, or some `rows` of them are joined.

    split  X, S X, S X, and squares in float32
    join   4 S X of the rows, and squares in float32
    """
    if altup is None:
        return 0
    wide = 2 * 4 * hidden_size
    x = hidden_size * shape.activation.block_bytes
    split = shape.tokens * ((2 * altup.streams + 1) * x + wide)
    return max(split, rows * (4 * altup.streams * x + wide))
