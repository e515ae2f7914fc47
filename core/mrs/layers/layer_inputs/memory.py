"""Activation bytes of embeddings by layer; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrs.layers.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes

if TYPE_CHECKING:
    from mrs.layers.layer_inputs.spec import GatedInput


def gated_input_bytes(
    config: GatedInput, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Peak of these phases, its input included. X is the size of x (T, h), I that of the input.

    gate     X, I and the gate
    project  X, 3 I and the projection
    norm     2 X and the norm
    add      3 X
    """
    x, inner = shape.size(hidden_size), shape.size(config.size)
    gate = product_bytes(shape, hidden_size, config.size, storage_of("input.gate"))
    projection = product_bytes(shape, config.size, hidden_size, storage_of("input.projection"))
    norm = norm_bytes(shape, hidden_size)
    return x + max(inner + gate, 4 * inner, 3 * inner + projection, x + norm, 2 * x)
