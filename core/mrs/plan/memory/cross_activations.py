"""Bytes of activations of layers that look at pictures; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.mixers.cross_attention_spec import CrossAttention
from mrs.plan.memory.attention_activations import kernel_bytes, native_attention_bytes
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.sizes.attention_workspace import is_native


def cross_attention_bytes(
    part: CrossAttention, run: ForwardShape, hidden_size: int, kept: StorageOf
) -> int:
    """Either one picture is mapped to keys and values; or, beside a copy of the rows that see, they
    attend.

    A pass that no picture is planned for leaves these layers out.
    """
    if not run.image_keys:
        return 0
    return max(
        _mapping_bytes(part, run, hidden_size, kept),
        run.size(hidden_size) + _attending_bytes(part, run, hidden_size, kept),
    )


def _mapping_bytes(
    part: CrossAttention, run: ForwardShape, hidden_size: int, kept: StorageOf
) -> int:
    """The features come from another device. Keys, and what they were normalized from; then values
    beside them, and both turned to lie head by head: that is the cache's, or is cast for it.

    Where pictures stand in a row, the keys and values of each and of all before it are put together
    in new memory.
    """
    if not run.new_image_keys:
        return 0
    one = replace(run, tokens=run.new_image_keys)
    size = part.kv_heads * part.head_dim
    features, keys = one.size(hidden_size), one.size(size)
    making = product_bytes(one, hidden_size, size, kept("cross.k"))
    turned = 2 * keys if run.cache != run.activation else 0
    joined = 2 * run.image_keys * size * run.cache.block_bytes
    return max(
        features + max(making, keys + norm_bytes(one, size), keys + making, 2 * keys + turned),
        turned + (joined if run.image_keys > run.new_image_keys else 0),
    )


def _attending_bytes(
    part: CrossAttention, run: ForwardShape, hidden_size: int, kept: StorageOf
) -> int:
    """Queries, and what they were normalized from; then what is mixed of every sequence, and its
    last one's cast, folded and mixed queries; then all of it in one piece, and its map back.
    """
    size = part.heads * part.head_dim
    queries, one = run.size(size), run.of_one_sequence()
    cast = one.tokens * size * run.cache.block_bytes
    if one.tokens > 1:
        folded = (2 if run.cache != run.activation else 1) * cast
        attending = max(folded + cast + kernel_bytes(part, one), 3 * cast)
    elif run.native and is_native(part.head_dim):
        group, dim = part.heads // part.kv_heads, part.head_dim
        pictures = replace(one, context_tokens=run.image_keys)
        attending = one.size(size) + native_attention_bytes(group, dim, dim, pictures)
    else:
        attending = 3 * cast + kernel_bytes(part, one)
    return max(
        product_bytes(run, hidden_size, size, kept("cross.q")),
        queries + norm_bytes(run, size),
        2 * queries + attending,
        3 * queries + product_bytes(run, size, hidden_size, kept("cross.o")),
    )
