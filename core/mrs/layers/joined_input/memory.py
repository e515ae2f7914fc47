"""Activation bytes of a draft head's input; see `mrs.plan.memory.model_activations`."""

from __future__ import annotations

from mrs.layers.forward_pass import ForwardShape, norm_bytes, product_bytes
from mrs.quantization.storage import Storage

#: States of each sequence that wait until its head reads them; beyond that, it reads them at once.
MOST_UNREAD = 64


def join_bytes(hidden_size: int, shape: ForwardShape, product: Storage) -> int:
    """Peak of these phases; X is the size of x (T, h).

    norms    X, X, and a norm
    join     X, X, X and 2 X
    product  X, 2 X and the product
    """
    x = shape.size(hidden_size)
    multiplied = 3 * x + product_bytes(shape, 2 * hidden_size, hidden_size, product)
    return max(2 * x + norm_bytes(shape, hidden_size), 5 * x, multiplied)
