"""Activation bytes of attention to chosen tokens; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.architecture.mixers.indexed_attention_spec import (
    BorrowedChoiceAttention,
    IndexedAttention,
)
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.model_spec import ModelSpec
from mrs.plan.memory.activations.latent_attention_activations import latent_attention_bytes
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.sizes.selected_keys import queries_at_once


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


def choices_bytes(spec: ModelSpec, shape: ForwardShape) -> int:
    """The choices of all tokens that later layers use: an index and a boolean for each key."""
    borrowed = [
        layer.mixer.top_k
        for layer in spec.layers
        if isinstance(layer.mixer, BorrowedChoiceAttention)
    ]
    most = min(max(borrowed, default=0), shape.context_tokens)
    return 9 * shape.tokens * most


def _attending_bytes(mixer: LatentAttention, top_k: int, one: ForwardShape) -> int:
    """Attention of the tokens of one sequence to chosen keys, without queries and results."""
    key_dim, chosen = mixer.kv_lora_rank + mixer.rope.dim, min(top_k, one.context_tokens)
    some = min(queries_at_once(chosen, key_dim), one.tokens)
    copies = some * chosen * key_dim * (one.key_bytes + 2 * 4)
    scores = 3 * 4 * some * mixer.heads * chosen
    vectors = 2 * 4 * some * mixer.heads * key_dim
    read = one.context_tokens * key_dim * 2 * one.key_bytes
    return 9 * one.tokens * chosen + copies + scores + vectors + read
