"""Activation bytes of parallel mixers; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.layers.attention.memory import attention_bytes
from mrs.layers.forward_pass import ForwardShape, StorageOf
from mrs.layers.mamba2.memory import mamba2_bytes
from mrs.layers.parallel_mixers.spec import ParallelMixers


def parallel_mixers_bytes(
    both: ParallelMixers, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases. X is the size of x (T, h).

    attention  X (its scaled input) and attention
    state      2 X (the result of attention, and the scaled input) and the state space
    """
    x = shape.size(hidden_size)
    attention = x + attention_bytes(both.attention, shape, hidden_size, storage_of)
    return max(attention, 2 * x + mamba2_bytes(both.state, shape, hidden_size, storage_of))
