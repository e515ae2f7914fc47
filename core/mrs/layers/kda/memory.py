"""Activation bytes of Kimi Delta Attention; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.kernels.workspace.channel_delta_rule import chunk_bytes, native_bytes
from mrs.layers.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.layers.kda.spec import KimiDeltaAttention


def kda_bytes(
    kda: KimiDeltaAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases.

    V is the size of all heads in float32, v in the type of x.

    project   2 v and a projection
    decay     3 v, x in float32 (unless it is), 3 V
    convolve  3 v, 2 V (log decays, result), 5 V of one sequence (6 V in torch)
    delta     3 v, 2 V, 4 V of one sequence, and one chunk (native: the workspace)
    norm      V, and the norm
    gate      2 V (the result and its norm), the gate in both types and its products
    project   3 V (norm, gate, their product), v, and the output projection
    """
    one, size = shape.of_one_sequence(), kda.values
    values, wide, wide_sequence = shape.size(size), 4 * shape.tokens * size, 4 * one.tokens * size
    wide_x = 4 * shape.tokens * (hidden_size if shape.activation.name != "F32" else 0)
    into = product_bytes(shape, hidden_size, size, storage_of("mixer.v"))
    recent = 4 * size * kda.kernel_tokens
    gate = product_bytes(shape, kda.head_dim, size, storage_of("mixer.gate_out"))
    projection = product_bytes(shape, size, hidden_size, storage_of("mixer.out"))
    throughout = 3 * values + 2 * wide
    if shape.native:
        convolved, workspace = 5 * wide_sequence, native_bytes(shape.threads, kda.head_dim)
    else:
        convolved = 6 * wide_sequence + 3 * recent
        workspace = chunk_bytes(one.tokens, kda.heads, kda.head_dim)
    return max(
        2 * values + into,
        3 * values + wide_x + 3 * wide,
        throughout + max(convolved, 4 * wide_sequence + workspace),
        wide + norm_bytes(shape, size) + values,
        2 * wide + shape.size(kda.head_dim) + gate + wide,
        3 * wide + values + projection,
    )
