"""Activation bytes of residual streams; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrs.layers.forward_pass import ForwardShape, norm_bytes

if TYPE_CHECKING:
    from mrs.layers.altup.spec import AltUp


def altup_layer_bytes(
    altup: AltUp, inner: int, input_bytes: int, hidden_size: int, shape: ForwardShape
) -> int:
    """Peak of these phases; `inner` bytes are those of the active stream's layer, with its input.

    predict  2 S X, X, and the norm
    compute  2 S X and the layer
    correct  3 S X and 4 X, or the norm in float32
    input    3 S X, 2 X, and `input_bytes`
    """
    x, streams = shape.size(hidden_size), altup.streams * shape.size(hidden_size)
    wide = 4 * shape.tokens * hidden_size
    norm = norm_bytes(shape, hidden_size) + wide
    return 2 * streams + max(inner, x + norm, streams + max(4 * x, x + norm, 2 * x + input_bytes))


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
