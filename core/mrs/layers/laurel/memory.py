"""Activation bytes of LAuReL; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrs.layers.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes

if TYPE_CHECKING:
    from mrs.layers.laurel.spec import Laurel


def laurel_bytes(
    laurel: Laurel, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Peak while the term is computed: 4 X (x, norm, mixer's output, their sum), and

    left       the product
    right      left's result and the product
    norm, add  X and the norm; 2 X
    """
    x, inner = shape.size(hidden_size), shape.size(laurel.rank)
    left = product_bytes(shape, hidden_size, laurel.rank, storage_of("laurel.left"))
    right = product_bytes(shape, laurel.rank, hidden_size, storage_of("laurel.right"))
    norm = norm_bytes(shape, hidden_size)
    return 4 * x + max(left, inner + right, inner + x + norm, 2 * x)
