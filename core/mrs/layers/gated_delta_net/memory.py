"""Activation bytes of a gated delta net; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.kernels.workspace.delta_rule import chunk_bytes, native_bytes
from mrs.layers.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.layers.gated_delta_net.spec import GatedDeltaNet


def delta_net_bytes(
    delta_net: GatedDeltaNet, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases.

    project     twice the input of the convolution
    throughout  input of the convolution, x in float32 (unless it is), result in float32
    plus the largest of
      convolve  3 convolution buffers of one sequence (in torch only)
      delta     convolution result, heads of q and k, result of one sequence, and the
                larger of: matrices of one chunk; the result in one tensor
                (native: v in one tensor and the workspace)
      gate      gate, and the larger of: gated result twice; gate and norm
      project   twice the gate, and out_proj
    """
    one = shape.of_one_sequence()
    channels, values = delta_net.channels, delta_net.value_heads * delta_net.value_dim
    wide_x = 4 * shape.tokens * (hidden_size if shape.activation.name != "F32" else 0)
    throughout = shape.size(channels) + wide_x + 4 * shape.tokens * values
    convolved = 4 * channels * (one.tokens + (0 if shape.native else delta_net.kernel_tokens))
    heads = 2 * 4 * one.tokens * delta_net.value_heads * delta_net.key_dim
    result = 4 * one.tokens * values
    mixed = convolved + heads + result
    if shape.native:
        mixed += result + native_bytes(shape.threads, delta_net.key_dim)
    else:
        sizes = delta_net.value_heads, delta_net.key_dim, delta_net.value_dim
        mixed = max(3 * convolved, mixed + max(chunk_bytes(one.tokens, *sizes), result))
    gate = 4 * shape.tokens * values
    gating = max(2 * shape.size(values), gate + norm_bytes(shape, values)) + gate
    projection = product_bytes(shape, values, hidden_size, storage_of("mixer.out"))
    return max(
        2 * shape.size(channels),
        throughout + max(mixed, gating, 2 * gate + projection),
    )
