"""Bytes of activations of the kinds of attention; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.cross_attention_spec import CrossAttention
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.norm_rope import Rope
from mrs.plan.memory.forward_pass import (
    ForwardShape,
    StorageOf,
    head_product_bytes,
    norm_bytes,
    product_bytes,
)
from mrs.sizes.attention_workspace import is_native, workspace_bytes
from mrs.sizes.mla_scores import heads_at_once
from mrs.sizes.rope_table import grown_rows

#: Keys that the CPU's fused attention looks at in one step, and float32 sums it keeps beside.
ATTENTION_KEYS_PER_STEP = 512


def attention_bytes(part: Attention, run: ForwardShape, hidden_size: int, kept: StorageOf) -> int:
    """Queries, keys, values and the mixed result (2 Q + 2 K) are held throughout.

    Gated ones come as 2 Q, which stay beside the queries. Before: the projections, and norms of q
    and k. Beside what is held: the rotated q and k, one after the other, which stay while the fused
    or the explicit attention runs; or the gates' sigmoid, in order; last the projection back.
    """
    query_size, key_size = part.heads * part.head_dim, part.kv_heads * part.head_dim
    queries, keys = run.size(query_size), run.size(key_size)
    gates = 2 * queries if part.gated else 0

    def product(slot: str, columns: int, rows: int, bias: bool) -> int:
        return product_bytes(run, columns, rows, kept(slot), bias=bias)

    made_rows = 2 * query_size if part.gated else query_size
    moments = [
        product("mixer.q", hidden_size, made_rows, part.qkv_bias),
        run.size(made_rows) + product("mixer.k", hidden_size, key_size, part.qkv_bias),
        gates + queries + keys + product("mixer.v", hidden_size, key_size, part.qkv_bias),
    ]
    if part.qk_norm is not None:
        before = gates + queries + keys + (0 if part.qk_norm_whole else keys)
        moments.append(before + norm_bytes(run, query_size))
        moments.append(before + queries + norm_bytes(run, key_size))
    held = gates + 2 * queries + 2 * keys
    one = run.of_one_sequence()
    turned = held
    if part.rope is not None:
        moments.append(held + rotation_bytes(run, part.heads, part.head_dim, part.rope))
        turned += queries
        moments.append(turned + rotation_bytes(run, part.kv_heads, part.head_dim, part.rope))
        turned += keys
        moments.append(held + _table_growth_bytes(one, part.rope))
    moments.append(turned + _attend_bytes(part, one))
    moments.append(held + gates)
    moments.append(held + product("mixer.o", query_size, hidden_size, part.out_bias))
    return max(moments)


def latent_attention_bytes(
    part: LatentAttention, run: ForwardShape, hidden_size: int, kept: StorageOf
) -> int:
    """First queries, those through the keys' map, and what of them is rotated.

    Then queries as they came and as they attend, the latent vector and the keys stay; beside them
    what attention takes and its result; last the result, what comes through the values' map and is
    put in order, and the projection back.
    """
    wide = part.kv_lora_rank + part.rope.dim
    q = run.size(part.heads * (part.qk_nope_head_dim + part.rope.dim))
    latents = run.size(part.heads * part.kv_lora_rank)
    queries = run.size(part.heads * wide)
    held = q + queries + run.size(2 * wide + part.kv_lora_rank)
    mapping = head_product_bytes(run, part.heads, part.qk_nope_head_dim, part.kv_lora_rank)
    turning = latents + queries + 2 * run.size(part.heads * part.rope.dim)
    making = q + max(mapping, turning)
    attending = latents + _latent_workspace_bytes(part, run.of_one_sequence())
    values = run.size(part.heads * part.v_head_dim)
    back = product_bytes(
        run, part.heads * part.v_head_dim, hidden_size, kept("mixer.o"), bias=part.bias
    )
    mapping = head_product_bytes(run, part.heads, part.kv_lora_rank, part.v_head_dim)
    ending = latents + max(mapping, 2 * values, values + back)
    return max(making, held + max(attending, ending))


def _latent_workspace_bytes(part: LatentAttention, run: ForwardShape) -> int:
    """Native attention's scores and rows; torch's copies of queries and keys in the cache's type,
    and scores of some heads: with their mask and softmax three lists in float32 and two of
    booleans, and float32 of the keys.
    """
    wide = part.kv_lora_rank + part.rope.dim
    if run.native and is_native(wide, part.kv_lora_rank):
        return native_attention_bytes(part.heads, wide, part.kv_lora_rank, run)
    pairs = run.tokens * run.context_tokens
    scores = pairs * min(part.heads, heads_at_once(run.tokens, run.context_tokens))
    keys = run.context_tokens * wide * (2 * 4 + run.cache.block_bytes)
    cast = run.tokens * part.heads * wide * run.cache.block_bytes
    return cast + (3 * 4 + 2) * scores + keys + run.size(part.heads * part.kv_lora_rank)


def rotation_bytes(run: ForwardShape, heads: int, head_dim: int, rope: Rope) -> int:
    """Both halves of the turned pairs and their joint, then the numbers that pass through.

    Half types turn in float32: a copy before, a cast behind. Native kernels need the result alone.
    Tokens of pictures are given cosines and sines of their own, by places for every pair.
    """
    places = run.tokens * rope.dim // 2 * (8 + 2 * 4) if rope.sections else 0
    if run.native:
        return places + run.size(heads * head_dim)
    pairs = 4 * run.tokens * heads * rope.dim
    if run.activation.name != "F32":
        pairs = pairs * 3 // 2
    rest = run.size(heads * head_dim) if rope.dim < head_dim else 0
    return places + max(2 * pairs, pairs + rest)


def table_tokens(context_tokens: int, chunk_tokens: int) -> int:
    """Rows of a rotary table that has grown until it holds the context."""
    rows = grown_rows(min(chunk_tokens, context_tokens))
    while rows < context_tokens:
        rows = grown_rows(rows + 1, rows)
    return rows


def table_bytes(rope: Rope, run: ForwardShape) -> int:
    """cos and sin in float32 of a rotary table."""
    fixed = rope.scaling is None or not rope.scaling.depends_on_length
    rows = table_tokens(run.context_tokens, run.tokens) if fixed else run.sequence_tokens
    return rows * rope.dim // 2 * 4 * 2


def _table_growth_bytes(run: ForwardShape, rope: Rope) -> int:
    """Angles, cosines, their product, new and half-sized old tables, less the table that stays."""
    return table_bytes(rope, run) * 10 // 8


def _attend_bytes(part: Attention, run: ForwardShape) -> int:
    """Beside rotated queries and the cache: the cast queries, then one of two ways.

    Native kernels take any queries and keep some scores a thread beside their result. torch's get
    a copy of keys and values, which there are three of while their blocks are put in order.
    """
    if run.native and is_native(part.head_dim):
        return run.size(part.heads * part.head_dim) + score_bytes(part, run)
    query = run.tokens * part.heads * part.head_dim * run.cache.block_bytes
    seen = _seen_keys(part, run)
    keys = seen * part.kv_heads * part.head_dim * run.cache.block_bytes
    cast = 2 * keys + (0 if run.cache == run.activation else query)
    if part.softcap is None and not part.sinks:
        return max(3 * keys, cast + _fused_bytes(part, run, query, seen))
    return max(3 * keys, cast + _explicit_bytes(part, run, query, seen))


def score_bytes(part: Attention, run: ForwardShape) -> int:
    """What native attention keeps in all threads."""
    return native_attention_bytes(part.heads // part.kv_heads, part.head_dim, part.head_dim, run)


def native_attention_bytes(group: int, key_dim: int, value_dim: int, run: ForwardShape) -> int:
    """What native attention of one sequence keeps in all threads."""
    each = workspace_bytes(
        run.path, group, key_dim, value_dim, tokens=run.tokens, context_tokens=run.context_tokens
    )
    return run.threads * each


def _seen_keys(part: Attention, run: ForwardShape) -> int:
    """A cache with a window returns the window before each token of the chunk."""
    if part.window is None or part.window + run.tokens >= run.context_tokens:
        return run.context_tokens
    return part.window - 1 + run.tokens


def _fused_bytes(part: Attention, run: ForwardShape, query: int, seen: int) -> int:
    """torch's fused attention over queries folded by group.

    One new token sees every key: no mask, and queries are only viewed. Otherwise the mask (T, S)
    stands as booleans, with a window it is made of three parts; folded it is (G T, S) booleans
    more, and it is made numbers of the cache's type. The result is copied into rows, while the
    kernel's own buffers are gone.
    """
    group = part.heads // part.kv_heads
    if run.tokens == 1:
        return 2 * query + kernel_bytes(part, run)
    mask = run.tokens * seen
    making = mask * (3 if part.window is not None else 1)
    masks = mask + (group * mask if group > 1 else 0)
    folded = query if group > 1 else 0
    kernel = group * mask * run.cache.block_bytes + query + kernel_bytes(part, run)
    return max(making, folded + masks + max(kernel, 2 * query))


def kernel_bytes(part: Attention | CrossAttention, run: ForwardShape) -> int:
    """The fused kernel's buffers: logarithms of sums, and on a CPU scores and sums a thread.

    A thread takes 256, 64 or 32 queries a step, and repeats half-type scores in that type.
    """
    rows = part.heads // part.kv_heads * run.tokens
    sums = part.heads * run.tokens * 4
    step = 256 if rows >= 768 else 64 if rows >= 192 else 32
    scores = step * ATTENTION_KEYS_PER_STEP * 4
    if run.cache.name != "F32":
        scores = scores * 3 // 2
    return sums + run.threads * (scores + step * part.head_dim * 4 + 2 * step * 4)


def _explicit_bytes(part: Attention, run: ForwardShape, query: int, seen: int) -> int:
    """Scores of one key head at a time, in float32.

    Four of them are alive from the second head on: those and the probabilities of the head
    before, and two that are being worked on; with one key head three. Beside them the mask,
    while it is made (with a window of three parts) or negated, and the results so far.
    """
    scores = part.heads // part.kv_heads * run.tokens * seen * 4
    count = 4 if part.kv_heads > 1 else 3
    mask = run.tokens * seen * 2 if run.tokens > 1 else 0
    return count * scores + mask + 2 * query
