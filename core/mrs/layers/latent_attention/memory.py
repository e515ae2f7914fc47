"""Activation bytes of multi-head latent attention; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.kernels.native_limits import is_native
from mrs.kernels.workspace.attention import heads_at_once, queries_at_once
from mrs.layers.attention.memory import native_attention_bytes
from mrs.layers.forward_pass import (
    ForwardShape,
    StorageOf,
    head_product_bytes,
    norm_bytes,
    product_bytes,
)
from mrs.layers.latent_attention.spec import (
    BorrowedChoiceAttention,
    IndexedAttention,
    LatentAttention,
)


def latent_attention_bytes(
    mla: LatentAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases, for MLA whose kv_b_proj is absorbed into queries and results.

    phase     allocated
    absorb    q, and the larger of: the product of q and kv_b's key rows; that product, the
              queries (latent and rope part) and twice the rope part
    then      queries, and the largest of:
      write   two key rows, one latent vector and the latent part's product
      attend  the latent result and the workspace of attention
      values  the latent result and its product with kv_b's value rows
      order   the latent result and the values twice, to make them contiguous
      project the latent result, the values and o_proj
    """
    key_dim = mla.kv_lora_rank + mla.rope.dim
    q = shape.size(mla.heads * (mla.qk_nope_head_dim + mla.rope.dim))
    latents = shape.size(mla.heads * mla.kv_lora_rank)
    queries = shape.size(mla.heads * key_dim)
    writing = shape.size(2 * key_dim + mla.kv_lora_rank)
    writing += product_bytes(shape, hidden_size, key_dim, storage_of("mixer.kv_a"))
    absorbing = head_product_bytes(shape, mla.heads, mla.qk_nope_head_dim, mla.kv_lora_rank)
    joining = latents + queries + 2 * shape.size(mla.heads * mla.rope.dim)
    making_queries = q + max(absorbing, joining)
    attending = latents + _latent_workspace_bytes(mla, shape.of_one_sequence())
    values = shape.size(mla.heads * mla.v_head_dim)
    projection = product_bytes(
        shape, mla.heads * mla.v_head_dim, hidden_size, storage_of("mixer.o"), bias=mla.bias
    )
    making_values = head_product_bytes(shape, mla.heads, mla.kv_lora_rank, mla.v_head_dim)
    ending = latents + max(making_values, 2 * values, values + projection)
    return max(making_queries, queries + max(writing, attending, ending))


def _latent_workspace_bytes(mla: LatentAttention, shape: ForwardShape) -> int:
    """The native kernel's workspace; or that of torch:

    queries and keys in the cache's type, keys in float32 (two copies at once), the result, and the
    scores of some heads: three times in float32 and two boolean masks.
    """
    key_dim = mla.kv_lora_rank + mla.rope.dim
    if shape.native and is_native(key_dim, mla.kv_lora_rank):
        return native_attention_bytes(mla.heads, key_dim, mla.kv_lora_rank, shape)
    pairs = shape.tokens * shape.context_tokens
    scores = pairs * min(mla.heads, heads_at_once(shape.tokens, shape.context_tokens))
    keys = shape.context_tokens * key_dim * (2 * 4 + shape.key_bytes)
    cast = shape.tokens * mla.heads * key_dim * shape.key_bytes
    return cast + (3 * 4 + 2) * scores + keys + shape.size(mla.heads * mla.kv_lora_rank)


def indexed_attention_bytes(
    mixer: IndexedAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """The larger of the peak of MLA with the latent vector of queries, and of these phases.

    phase       allocated
    throughout  the latent vector, queries of MLA and of the indexer and its weights, both results
    index       the indexer's queries and their product, or twice them to rotate, or its keys
    score       keys in the cache's type (twice) and float32, scores, and those of one head twice
    choose      scores and a mask, the best ones with their indices (twice)
    attend      keys in the cache's type (twice); copies of some chosen keys in the cache's type
                and float32 (twice), and their scores three times
    """
    index, one = mixer.indexer, shape.of_one_sequence()
    rank, key_dim = mixer.q_lora_rank or hidden_size, mixer.kv_lora_rank + mixer.rope.dim
    latent = shape.size(rank)
    dense = latent + norm_bytes(shape, rank)
    dense += latent_attention_bytes(mixer, shape, hidden_size, storage_of)
    if shape.context_tokens <= index.top_k:
        keys = product_bytes(shape, hidden_size, index.head_dim, storage_of("mixer.index_k"))
        return dense + keys + norm_bytes(shape, index.head_dim)
    size, context = index.heads * index.head_dim, shape.context_tokens
    results = 2 * shape.size(mixer.heads * mixer.kv_lora_rank)
    throughout = latent + shape.size(mixer.heads * key_dim + size) + results
    throughout += 4 * shape.tokens * index.heads
    indexing = product_bytes(shape, rank, size, storage_of("mixer.index_q")) + 2 * shape.size(size)
    indexing += 4 * shape.tokens * (hidden_size + index.heads)
    pairs, chosen = one.tokens * context, min(index.top_k, context)
    cached = 2 * shape.key_bytes
    queries = 4 * one.tokens * index.head_dim
    scoring = context * index.head_dim * (cached + 4) + 3 * 4 * pairs + queries
    choosing = 5 * pairs + 2 * 12 * one.tokens * chosen
    attending = 4 * pairs + _attending_bytes(mixer, index.top_k, one)
    return max(dense, throughout + max(indexing, scoring, choosing, attending))


def borrowed_choice_bytes(
    mixer: BorrowedChoiceAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """The larger of the peak of MLA, and of attention to chosen tokens."""
    dense = latent_attention_bytes(mixer, shape, hidden_size, storage_of)
    if shape.context_tokens <= mixer.top_k:
        return dense
    key_dim = mixer.kv_lora_rank + mixer.rope.dim
    throughout = shape.size(mixer.heads * (key_dim + 2 * mixer.kv_lora_rank))
    return max(dense, throughout + _attending_bytes(mixer, mixer.top_k, shape.of_one_sequence()))


def _attending_bytes(mixer: LatentAttention, top_k: int, one: ForwardShape) -> int:
    """Attention of the tokens of one sequence to chosen keys, without queries and results."""
    key_dim, chosen = mixer.kv_lora_rank + mixer.rope.dim, min(top_k, one.context_tokens)
    some = min(queries_at_once(chosen, key_dim), one.tokens)
    copies = some * chosen * key_dim * (one.key_bytes + 2 * 4)
    scores = 3 * 4 * some * mixer.heads * chosen
    vectors = 2 * 4 * some * mixer.heads * key_dim
    read = one.context_tokens * key_dim * 2 * one.key_bytes
    return 9 * one.tokens * chosen + copies + scores + vectors + read
