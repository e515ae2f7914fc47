"""Activation bytes of a short convolution; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.layers.forward_pass import ForwardShape, StorageOf, product_bytes
from mrs.layers.short_convolution.spec import ShortConvolution


def short_convolution_bytes(
    conv: ShortConvolution, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases. C is the size of one tensor (T, channels).

    project in   in_proj
    convolve     5 C (three projections, input and result), and of one sequence in float32:
                 inputs, their sum and the next product (and the bias); native: the sum
    project out  5 C, the gated result and out_proj
    """
    one = shape.of_one_sequence()
    channels = conv.channels
    into = product_bytes(shape, hidden_size, 3 * channels, storage_of("mixer.in"), bias=conv.bias)
    throughout = shape.size(5 * channels)
    inputs = 4 * channels * (one.tokens + (0 if shape.native else conv.kernel_tokens))
    projection = product_bytes(
        shape, channels, hidden_size, storage_of("mixer.out"), bias=conv.bias
    )
    buffers = 1 if shape.native else 4 if conv.bias else 3
    return max(into, throughout + max(buffers * inputs, shape.size(channels) + projection))
