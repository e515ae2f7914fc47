"""Activation bytes of attention; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from typing import Protocol

from mrs.kernels.native_limits import is_native
from mrs.kernels.workspace.attention import (
    WINDOW_QUERIES,
    code_rows_bytes,
    heads_at_once,
    queries_at_once,
    workspace_bytes,
)
from mrs.layers.attention.spec import Attention, EncoderAttention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.forward_pass import ForwardShape

#: Keys that torch's fused attention on a CPU processes in one step.
ATTENTION_KEYS_PER_STEP = 512
#: From this many queries and keys on, the keys are copied for AMX.
LEAST_COPIED = 64


class Heads(Protocol):
    """What torch's fused kernel depends on."""

    @property
    def heads(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...


def attend_bytes(attention: Attention, shape: ForwardShape) -> int:
    """Attention itself, in addition to the rotated queries and the cache.

    The native kernel allocates its result and some scores per thread. torch first copies keys and
    values out of their blocks (three copies of one of them at the peak) and casts the queries.
    """
    if isinstance(attention, EncoderAttention):
        return _attend_both_ways_bytes(attention, shape)
    if shape.native and is_native(attention.key_dim, attention.value_dim):
        return shape.size(attention.output_size) + score_bytes(attention, shape)
    if _makes_all_scores(attention):
        return _all_scores_bytes(attention, shape)
    widest = max(attention.key_dim, attention.value_dim)
    query = shape.tokens * attention.heads * widest * shape.key_bytes
    attended = _attended_keys(attention, shape)
    keys = attended * attention.kv_heads * widest * shape.key_bytes
    cast = 2 * keys + (0 if shape.cache == shape.activation else query)
    if attention.alibi:  # the values are made as wide as the keys
        cast += keys
    if attention.softcap is None and not attention.sinks:
        return max(3 * keys, cast + _fused_bytes(attention, shape, query, attended))
    return max(3 * keys, cast + _explicit_bytes(attention, shape, query, attended))


def _makes_all_scores(attention: Attention) -> bool:
    """Whether torch has no fused kernel: for one key head with values of another size."""
    has_options = attention.softcap is not None or attention.sinks or attention.alibi
    return attention.kv_heads == 1 and attention.key_dim != attention.value_dim and not has_options


def _all_scores_bytes(attention: Attention, shape: ForwardShape) -> int:
    """All scores of some heads with one key head, whose keys have the values in them.

    Queries and keys in the cache's type, keys in float32 (two copies at once), the result, and the
    scores: three times in float32 and two boolean masks.
    """
    pairs = shape.tokens * shape.context_tokens
    scores = pairs * min(attention.heads, heads_at_once(shape.tokens, shape.context_tokens))
    keys = shape.context_tokens * attention.key_dim * (2 * 4 + shape.key_bytes)
    cast = shape.tokens * attention.heads * attention.key_dim * shape.key_bytes
    return cast + (3 * 4 + 2) * scores + keys + shape.size(attention.output_size)


def attend_to_chosen_bytes(attention: Attention, top_k: int, shape: ForwardShape) -> int:
    """Attention of the tokens of one sequence to chosen keys, without queries and result.

    The positions and a mask, the keys in the cache's type (twice), and for some queries at a time:
    copies of the chosen keys in the cache's type and in float32 (twice), the queries and results
    in float32, and the scores three times.
    """
    key_dim, chosen = attention.key_dim, min(top_k, shape.context_tokens)
    some = min(queries_at_once(chosen, key_dim), shape.tokens)
    copies = some * chosen * key_dim * (shape.key_bytes + 2 * 4)
    scores = 3 * 4 * some * attention.heads * chosen
    vectors = 2 * 4 * some * attention.heads * key_dim
    read = shape.context_tokens * key_dim * 2 * shape.key_bytes
    return 17 * shape.tokens * chosen + copies + scores + vectors + read


def _attend_both_ways_bytes(attention: EncoderAttention, shape: ForwardShape) -> int:
    """Attention to all tokens of a text, in addition to queries, keys and values.

    The result is there twice. With a window, T queries at a time have positions relative to S keys
    (two of 8 bytes), a mask of booleans, that of all G heads of a key head, and the mask in the
    type of the activations.
    """
    query = shape.size(attention.heads * attention.head_dim)
    results = 2 * query
    if attention.window is None or shape.tokens <= attention.window:
        if shape.native and is_native(attention.head_dim):
            return results + 8 * shape.tokens + score_bytes(attention, shape)
        return results + query + kernel_bytes(attention, shape, shape.tokens)
    tile = min(WINDOW_QUERIES, shape.tokens)
    keys = min(shape.tokens, tile + 2 * (attention.window - 1))
    pairs = tile * keys
    group = attention.heads // attention.kv_heads
    masks = max(2 * 8 * pairs + pairs, (1 + shape.activation.block_bytes) * group * pairs)
    return results + query + masks + kernel_bytes(attention, shape, keys)


def attend_to_images_bytes(cross: CrossAttention, shape: ForwardShape) -> int:
    """Attention of the rows of one sequence to its images, with the result.

    The native kernel has a workspace. torch casts and folds the queries; one row needs no folding.
    """
    group, dim = cross.heads // cross.kv_heads, cross.head_dim
    if shape.native and is_native(dim):
        return shape.size(cross.heads * dim) + native_attention_bytes(group, dim, dim, shape)
    query = shape.tokens * cross.heads * dim * shape.key_bytes
    kernel = kernel_bytes(cross, shape, shape.image_keys)
    if shape.tokens == 1:
        return 3 * query + kernel
    cast = 0 if shape.cache == shape.activation else query
    return max(cast + 2 * query + kernel, 3 * query)


def score_bytes(attention: Attention, shape: ForwardShape) -> int:
    """Workspace of native attention in all threads."""
    if shape.quantized is not None:
        return shape.threads * code_rows_bytes(attention.key_dim, attention.value_dim)
    return native_attention_bytes(
        attention.heads // attention.kv_heads, attention.key_dim, attention.value_dim, shape
    )


def native_attention_bytes(group: int, key_dim: int, value_dim: int, shape: ForwardShape) -> int:
    """Workspace of native attention for one sequence, in all threads."""
    return shape.threads * workspace_bytes(
        shape.path, group, key_dim, value_dim, tokens=shape.tokens
    )


def _attended_keys(attention: Attention, shape: ForwardShape) -> int:
    """Keys that a chunk attends to; a sliding window starts before its first token."""
    if attention.chunk is not None:
        return min(attention.chunk, shape.context_tokens)
    if attention.window is None or attention.window + shape.tokens >= shape.context_tokens:
        return shape.context_tokens
    return attention.window - 1 + shape.tokens


def _fused_bytes(attention: Attention, shape: ForwardShape, query: int, attended: int) -> int:
    """torch's fused attention, with the G query heads of a key head folded into rows.

    One new token attends to every key: it needs no mask and no copy of the queries. For T > 1:

        phase    allocated
        mask     (T, S) booleans; three times if there is a window
        attend   folded queries, masks of (T, S) and (G T, S) booleans, the mask in the cache's
                 type, the result and the kernel's buffers
        copy     folded queries, both masks, the result twice (without the kernel's buffers)
    """
    group = attention.heads // attention.kv_heads
    if shape.tokens == 1:
        return 2 * query + kernel_bytes(attention, shape, attended)
    mask = shape.tokens * attended
    mask_phase = mask * (3 if attention.window is not None else 1)
    masks = mask + (group * mask if group > 1 else 0)
    folded = query if group > 1 else 0
    kernel = group * mask * shape.key_bytes + query
    kernel += kernel_bytes(attention, shape, attended)
    return max(mask_phase, folded + masks + max(kernel, 2 * query))


def kernel_bytes(attention: Heads, shape: ForwardShape, keys: int) -> int:
    """Buffers of torch's fused kernel: log-sum-exp values, and scores and sums per CPU thread.

    A thread processes 256, 64 or 32 queries in one step. With half types it also has the scores in
    that type. With matrix units, all `keys` and values of bf16 are copied into another layout, if
    there are enough queries.
    """
    rows = attention.heads // attention.kv_heads * shape.tokens
    sums = attention.heads * shape.tokens * 4
    step = 256 if rows >= 768 else 64 if rows >= 192 else 32
    scores = step * ATTENTION_KEYS_PER_STEP * 4
    if shape.cache.name != "F32":
        scores = scores * 3 // 2
    threads = shape.threads * (scores + step * attention.head_dim * 4 + 2 * step * 4)
    return sums + threads + _copied_keys_bytes(attention, shape, rows, keys)


def _copied_keys_bytes(attention: Heads, shape: ForwardShape, rows: int, keys: int) -> int:
    """Keys and values in the layout of AMX, and those of one step per thread, as measured."""
    is_copied = shape.cache.name == "BF16" and "amx" in shape.torch_units
    if not is_copied or min(rows, keys) < LEAST_COPIED or rows < 4 * shape.threads:
        return 0
    in_step = min(keys, ATTENTION_KEYS_PER_STEP)
    pairs = 2 * attention.kv_heads * (keys + keys % 2) + shape.threads * in_step
    return 2 * pairs * attention.head_dim


def _explicit_bytes(attention: Attention, shape: ForwardShape, query: int, attended: int) -> int:
    """Attention in torch operations (softcap or sinks), one key head at a time, in float32.

    From the second key head on, four tensors of scores are allocated: scores and probabilities of
    the previous head, and two of this head; with one key head three. In addition: the mask twice,
    and the results.
    """
    scores = attention.heads // attention.kv_heads * shape.tokens * attended * 4
    count = 4 if attention.kv_heads > 1 else 3
    mask = shape.tokens * attended * 2 if shape.tokens > 1 else 0
    return count * scores + mask + 2 * query
