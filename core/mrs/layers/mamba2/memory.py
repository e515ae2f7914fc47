"""Activation bytes of Mamba 2; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.kernels.workspace.state_space import chunk_bytes
from mrs.layers.forward_pass import ForwardShape, StorageOf, product_bytes
from mrs.layers.mamba2.spec import Mamba2


def mamba2_bytes(
    mamba: Mamba2, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases.

    V is the size of the values of all heads in float32.

    project     the input projection
    throughout  the projection, steps, V
    plus the largest of
      step      the steps three times
      convolve  4 convolution buffers of one sequence (in torch only)
      scan      3 convolution buffers, one chunk, and the results of all chunks, twice
                (native: the convolution's result, and that of the scan)
      gate      3 V
      project   2 V and the output projection
    """
    one = shape.of_one_sequence()
    into = product_bytes(
        shape, hidden_size, mamba.projected, storage_of("mixer.in"), bias=mamba.bias
    )
    values, steps = 4 * shape.tokens * mamba.values, 4 * shape.tokens * mamba.heads
    throughout = shape.size(mamba.projected) + steps + values
    results = 4 * one.tokens * mamba.values
    if shape.native:
        scanned = 4 * one.tokens * mamba.channels + results
    else:
        convolved = 4 * mamba.channels * (one.tokens + mamba.kernel_tokens)
        chunk = chunk_bytes(one.tokens, mamba.heads, mamba.head_dim, mamba.state_dim)
        scanned = max(4 * convolved, 3 * convolved + 2 * results + chunk)
    projection = product_bytes(
        shape, mamba.values, hidden_size, storage_of("mixer.out"), bias=mamba.out_bias
    )
    later = max(3 * steps, scanned, 3 * values, 2 * values + projection)
    return max(into, throughout + later)
