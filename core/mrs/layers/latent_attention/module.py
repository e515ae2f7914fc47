"""What operations of multi-head latent attention call: its caches, and attention to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.attention_backend import AttentionBackend, attention_backend
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.paged import PagedKV, computable
from mrs.kernels.selected_attention import attend_to_keys, choose_keys, index_scores
from mrs.layers.latent_attention.spec import IndexedAttention, LatentAttention
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights

#: Of each sequence what it has cached in this layer, or a pair of that with an indexer's keys.
Caches = Any


class LatentAttentionModule:
    """The latent vector and the rotated key of each token, which all heads attend to as one key.

    Its first values are the value, too. The keys of an indexer are in a second cache.
    """

    _backend: AttentionBackend

    def __init__(self, mla: LatentAttention, weights: ModelWeights, rope: RopeTable | None) -> None:
        self._attention, self._options = mla.absorbed, AttentionOptions(mla.scale)
        self._indexer = mla.indexer if isinstance(mla, IndexedAttention) else None

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        kv = _keys(builder, device, self._attention.key_dim, self._attention.value_dim)
        self._backend = attention_backend(kv)
        builder.add_paged(kv)
        if self._indexer is not None:
            dim = self._indexer.head_dim
            builder.add_paged(_keys(builder, device, dim, dim))

    def write(self, k: Tensor, v: None, batch: ForwardBatch, cache: Caches) -> None:
        """Write the keys (N, 1, D) of the new tokens."""
        own = self._own(cache)
        self._backend.write(own.kv, batch.attention[own.group], k, v)

    def write_index(self, k: Tensor, batch: ForwardBatch, cache: Caches) -> None:
        """Write the indexer's keys (N, 1, D) of the new tokens."""
        own = cache[1][0]
        own.kv.write(batch.attention[own.group].slot_mapping, (k,))

    def choose(
        self, q: Tensor, weights: Tensor, batch: ForwardBatch, cache: Caches, choice: Tensor
    ) -> None:
        """Write the best positions for the indexer's q (N, H, D) to `choice` (N, top_k) int32.

        `weights` (N, H) are those of its heads. Rows of sequences that have no more tokens than
        `top_k` stay as they are.
        """
        kv, group = cache[1][0].kv, batch.attention[cache[1][0].group]
        tables, top_k = group.tables(kv.block_tokens), choice.shape[1]
        for (rows, context), table in zip(group.queries, tables, strict=True):
            if context > top_k:
                (keys,) = kv.read(table, 0, context)
                scores = index_scores(q[rows], weights[rows], keys[0].float())
                choice[rows] = choose_keys(scores, top_k).int()

    def attend(
        self, q: Tensor, batch: ForwardBatch, cache: Caches, choice: Tensor | None = None
    ) -> Tensor:
        """q (N, H, D) to (N, H * Dv).

        In sequences that have more than `top_k` tokens, each attends to those at the positions of a
        `choice` (N, top_k), int32 on any device.
        """
        kv, group = self._own(cache).kv, batch.attention[self._own(cache).group]
        if choice is None or all(context <= choice.shape[1] for _, context in group.queries):
            return self._backend.attend(q, kv, group, self._options)
        outs = []
        tables = group.tables(kv.block_tokens)
        for (rows, context), table in zip(group.queries, tables, strict=True):
            (keys,) = kv.read(table, 0, context)
            positions = choice[rows]
            if context <= choice.shape[1]:
                positions = torch.arange(context).expand(len(positions), -1)
            positions = positions.to(keys.device, torch.int64)
            outs.append(
                attend_to_keys(
                    q[rows], computable(keys[0]), kv.value_dim, positions, self._options.scale
                )
            )
        return torch.cat(outs)

    def _own(self, cache: Caches) -> PagedKVCache:
        """The cache of one sequence: all are in the same memory."""
        own: PagedKVCache = cache[0] if self._indexer is None else cache[0][0]
        return own


def _keys(builder: CacheBuilder, device: torch.device, dim: int, value_dim: int) -> PagedKV:
    return PagedKV(
        *(1, dim, value_dim),
        block_tokens=builder.config.size.block_tokens,
        dtype=builder.config.float_dtype,
        device=device,
        values_in_keys=True,
    )
