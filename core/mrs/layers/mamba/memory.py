"""Activation bytes of the first Mamba; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.layers.forward_pass import ForwardShape, StorageOf, product_bytes
from mrs.layers.mamba.spec import Mamba


def mamba_bytes(mamba: Mamba, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    """Peak of these phases. V is the size of all channels in float32, C that of activations.

    project     the input projection
    project     V and C, and the output projection
    throughout  the projection (2 C) and V, what is convolved
    plus the largest of
      convolve  3 convolution buffers of one sequence (native: its result)
      select    C and the map of it; what is selected, three times
      step      what is selected, and the larger of the map to steps; C and 2 V (in torch the steps
                three times and a mask)
      scan      2 V (steps and result), that of one sequence, and two states
      gate      2 V
    """
    one = shape.of_one_sequence()
    channels, selected = mamba.channels, shape.size(sum(mamba.selected))
    into = product_bytes(shape, hidden_size, 2 * channels, storage_of("mixer.in"), bias=mamba.bias)
    values = 4 * shape.tokens * channels
    convolved = 4 * channels * one.tokens
    if not shape.native:
        convolved = 3 * (convolved + 4 * channels * mamba.kernel_tokens)
    select = product_bytes(shape, channels, sum(mamba.selected), storage_of("mixer.x"))
    step = product_bytes(shape, mamba.step_rank, channels, storage_of("mixer.step"))
    out = product_bytes(shape, channels, hidden_size, storage_of("mixer.out"), bias=mamba.bias)
    cast = shape.size(channels) if shape.activation.block_bytes < 4 else 0
    steps = cast + 2 * values if shape.native else cast + 3 * values + values // 4
    states = 8 * channels * mamba.state_dim
    later = max(
        convolved,
        cast + select,
        cast + 3 * selected,
        2 * selected + max(step, steps),
        2 * selected + 2 * values + 4 * one.tokens * channels + states,
        2 * values,
    )
    return max(into, values + cast + out, shape.size(2 * channels) + values + later)
