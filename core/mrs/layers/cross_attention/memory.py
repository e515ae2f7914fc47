"""Activation bytes of cross-attention to images; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from dataclasses import replace

from mrs.kernels.native_limits import is_native
from mrs.layers.attention.memory import kernel_bytes, native_attention_bytes
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes


def cross_attention_bytes(
    cross: CrossAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of two phases: projecting one image to K/V, and attention of the text rows.

    The second phase also has a copy of the rows that attend. 0 if no image is planned, because
    such a forward pass skips these layers.
    """
    if not shape.image_keys:
        return 0
    return max(
        _projecting_bytes(cross, shape, hidden_size, storage_of),
        shape.size(hidden_size) + _attending_bytes(cross, shape, hidden_size, storage_of),
    )


def _projecting_bytes(
    cross: CrossAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of projecting one image to keys and values (K bytes each).

    phase       allocated
    project k   features (copied to this device), k_proj
    norm k      features, K, norm of K
    project v   features, K, v_proj
    transpose   features, 2 K, and 2 K transposed to (heads, keys) if the cache's type differs
    join        2 K transposed, and keys and values of this image and all before it in new
                memory (if there are several images)
    """
    if not shape.new_image_keys:
        return 0
    one = replace(shape, tokens=shape.new_image_keys)
    size = cross.kv_heads * cross.head_dim
    features, keys = one.size(hidden_size), one.size(size)
    projecting = product_bytes(one, hidden_size, size, storage_of("cross.k"))
    transposed = 2 * keys if shape.cache != shape.activation else 0
    joined = 2 * shape.image_keys * size * shape.cache.block_bytes
    return max(
        features
        + max(projecting, keys + norm_bytes(one, size), keys + projecting, 2 * keys + transposed),
        transposed + (joined if shape.image_keys > shape.new_image_keys else 0),
    )


def _attending_bytes(
    cross: CrossAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of attention of the text rows to the images (Q bytes of queries).

    phase       allocated
    project q   q_proj
    norm q      Q, norm of Q
    attend      2 Q (queries and results of all sequences), and of the last sequence: the result
                and the native workspace; or cast and folded queries, result, buffers of torch
    project     3 Q (queries, results, results in one tensor), o_proj
    """
    size = cross.heads * cross.head_dim
    queries, one = shape.size(size), shape.of_one_sequence()
    cast = one.tokens * size * shape.cache.block_bytes
    if shape.native and is_native(cross.head_dim):
        group, dim = cross.heads // cross.kv_heads, cross.head_dim
        attending = one.size(size) + native_attention_bytes(group, dim, dim, one)
    elif one.tokens > 1:
        folded = (2 if shape.cache != shape.activation else 1) * cast
        attending = max(folded + cast + kernel_bytes(cross, one, one.image_keys), 3 * cast)
    else:
        attending = 3 * cast + kernel_bytes(cross, one, one.image_keys)
    return max(
        product_bytes(shape, hidden_size, size, storage_of("cross.q")),
        queries + norm_bytes(shape, size),
        2 * queries + attending,
        3 * queries + product_bytes(shape, size, hidden_size, storage_of("cross.o")),
    )
