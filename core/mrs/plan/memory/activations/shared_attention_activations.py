"""Activation bytes of shared attention; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.architecture.mixers.shared_attention_spec import SharedAttention
from mrs.plan.memory.activations.attention_activations import (
    attend_bytes,
    rotation_bytes,
    table_growth_bytes,
)
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes


def shared_attention_bytes(
    shared: SharedAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases. Q is the size of the queries.

    project  q_proj
    norm     Q and the norm of q
    rotate   Q and the rotated q; or the rope table while it grows
    attend   2 Q (queries, result), rotated q and the workspace of attention
    project  3 Q and o_proj
    """
    attention, one = shared.attention, shape.of_one_sequence()
    query_size = attention.heads * attention.head_dim
    queries = shape.size(query_size)
    bias = attention.qkv_bias
    phases = [
        product_bytes(shape, hidden_size, query_size, storage_of("mixer.q"), bias=bias),
        queries + norm_bytes(shape, query_size),
    ]
    if (rope := attention.rope) is not None:
        phases.append(queries + rotation_bytes(shape, attention.heads, attention.head_dim, rope))
        phases.append(queries + table_growth_bytes(one, rope))
    phases.append(3 * queries + attend_bytes(attention, one))
    out_bias = attention.out_bias
    projection = product_bytes(shape, query_size, hidden_size, storage_of("mixer.o"), bias=out_bias)
    return max(*phases, 3 * queries + projection)
