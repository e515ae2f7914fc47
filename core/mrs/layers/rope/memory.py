"""Activation bytes of rotation, and of its table of cosines and sines."""

from __future__ import annotations

from mrs.layers.forward_pass import ForwardShape
from mrs.layers.rope.spec import Rope

LEAST_ROWS = 256


def grown_rows(needed_rows: int, rows: int = 0) -> int:
    """Rows of a table that grows from `rows` to at least `needed_rows`: it at least doubles."""
    return max(needed_rows, 2 * rows, LEAST_ROWS)


def rotation_bytes(shape: ForwardShape, heads: int, head_dim: int, rope: Rope) -> int:
    """Peak bytes of rotating q or k of T tokens.

        native             the result
        torch              both halves of the rotated dims and the result joined from them; or the
                           joined result and the dims that are not rotated
        torch, half types  the same in float32, with a copy before or a cast after

    M-RoPE (`rope.sections`) also needs positions, cosines and sines for every token and pair.
    """
    angles = shape.tokens * rope.dim // 2 * (8 + 2 * 4) if rope.sections else 0
    if shape.native:
        return angles + shape.size(heads * head_dim)
    pairs = 4 * shape.tokens * heads * rope.dim
    if shape.activation.name != "F32":
        pairs = pairs * 3 // 2
    unrotated = shape.size(heads * head_dim) if rope.dim < head_dim else 0
    return angles + max(2 * pairs, pairs + unrotated)


def table_tokens(context_tokens: int, chunk_tokens: int) -> int:
    """Rows of a rotary table after it has grown to the whole context."""
    rows = grown_rows(min(chunk_tokens, context_tokens))
    while rows < context_tokens:
        rows = grown_rows(rows + 1, rows)
    return rows


def table_bytes(rope: Rope, shape: ForwardShape) -> int:
    """Bytes of the cosines and sines of a rotary table, in float32."""
    fixed = rope.scaling is None or not rope.scaling.depends_on_length
    rows = table_tokens(shape.context_tokens, shape.tokens) if fixed else shape.sequence_tokens
    return rows * rope.dim // 2 * 4 * 2


def table_growth_bytes(shape: ForwardShape, rope: Rope) -> int:
    """What growing the table needs in addition to the new table.

    These are angles, cosines, their product and the old table of half the size.
    """
    return table_bytes(rope, shape) * 10 // 8
