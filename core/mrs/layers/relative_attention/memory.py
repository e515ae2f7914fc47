"""Activation bytes of attention by distance; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from dataclasses import replace

from mrs.kernels.workspace.attention import heads_at_once
from mrs.layers.attention.memory import kernel_bytes
from mrs.layers.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.layers.relative_attention.spec import (
    BiasedAttention,
    DisentangledAttention,
    RelativeAttention,
)


def relative_attention_bytes(
    attention: RelativeAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Attention of the tokens of one sequence, in addition to queries, keys and values.

    There is the result twice, what belongs to distances, their numbers (four lists of 8 bytes), and
    for some heads: what is added to scores, and what it is made of.
    """
    heads = min(attention.heads, heads_at_once(shape.tokens, shape.tokens))
    some = replace(attention, heads=heads, kv_heads=heads)
    width = 2 * shape.tokens - 1
    results = 2 * shape.size(attention.output_size) + 4 * 8 * width
    kernel = kernel_bytes(some, shape, shape.tokens)
    if isinstance(attention, BiasedAttention):
        biases = 2 * attention.heads * width * shape.activation.block_bytes
        return results + biases + shape.size(heads * width) + kernel
    assert isinstance(attention, DisentangledAttention)
    rows = min(width, 2 * attention.span)
    mapped = _position_bytes(attention, replace(shape, tokens=rows), hidden_size, storage_of)
    kept = len(attention.maps) * rows * attention.key_size * shape.activation.block_bytes
    added = shape.size(heads * shape.tokens)
    made = shape.size(heads * (rows + width))
    return results + max(mapped, kept + added + max(made, kernel))


def _position_bytes(
    attention: DisentangledAttention, rows: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """The rows of the table, normed and cast, and what they are mapped to."""
    table, peak, made = 2 * rows.size(hidden_size), 0, 0
    for slot in attention.maps:
        storage = storage_of(slot)
        product = product_bytes(rows, hidden_size, attention.key_size, storage, bias=True)
        peak, made = max(peak, made + product), made + rows.size(attention.key_size)
    return table + max(norm_bytes(rows, hidden_size), peak)
