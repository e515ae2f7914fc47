"""Activation bytes of Kimi Delta Attention; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.architecture.mixers.kda_spec import KimiDeltaAttention
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.sizes.channel_delta_workspace import chunk_bytes


def kda_bytes(
    kda: KimiDeltaAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases. V is the size of all heads in float32, v in the type of x.

    project     2 v and a projection
    decay       3 v, x in float32 (unless it is), 3 V
    throughout  3 v, 2 V (log decays, result)
    plus the largest of
      convolve  7 V of one sequence
      delta     4 V of one sequence, and one chunk
      gate      the gate in both types and its products, or the norm
      project   2 V and the output projection
    """
    one, size = shape.of_one_sequence(), kda.values
    values, wide, own = shape.size(size), 4 * shape.tokens * size, 4 * one.tokens * size
    wide_x = 4 * shape.tokens * (hidden_size if shape.activation.name != "F32" else 0)
    into = product_bytes(shape, hidden_size, size, storage_of("mixer.v"))
    recent = 4 * size * kda.kernel_tokens
    gate = product_bytes(shape, kda.head_dim, size, storage_of("mixer.gate_out"))
    gate += shape.size(kda.head_dim) + wide
    gating = max(gate, values + wide + norm_bytes(shape, size) + wide)
    projection = product_bytes(shape, size, hidden_size, storage_of("mixer.out"))
    delta = 4 * own + chunk_bytes(one.tokens, kda.heads, kda.head_dim)
    later = max(7 * own + 3 * recent, delta, gating, 2 * wide + projection)
    return max(2 * values + into, 3 * values + wide_x + 3 * wide, 3 * values + 2 * wide + later)
