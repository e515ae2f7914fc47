"""Multi-head latent attention (MLA) to the tokens that an indexer chooses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.architecture.mixers.indexed_attention_spec import IndexedAttention, Indexer
from mrs.cache.cache_space import CacheBuilder
from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.dense_products import linear
from mrs.kernels.paged import PagedKV, computable
from mrs.kernels.rotate import rotate
from mrs.kernels.selected_attention import attend_to_keys, choose_keys
from mrs.model.batch import ForwardBatch
from mrs.model.latent_attention import LatentAttentionModule
from mrs.model.model_weights import ModelWeights
from mrs.model.rope import RopeTable

Caches = tuple[Sequence[PagedKVCache], Sequence[PagedKVCache]]


class IndexerModule:
    """Scores earlier tokens; its keys have a cache of their own."""

    def __init__(self, config: Indexer, weights: ModelWeights, rope: RopeTable) -> None:
        self._config, self._rope = config, rope
        self._q, self._k = weights.linear("mixer.index_q"), weights.linear("mixer.index_k")
        self._norm = weights.norm("mixer.index_norm", config.norm)
        self._weights = weights.vector("mixer.index_weights.weight")

    def keys(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """x (N, hidden) to the keys of the new tokens (N, 1, head_dim)."""
        return self._rotated(self._norm(self._k(x))[:, None], batch)

    def queries(self, latent: Tensor, batch: ForwardBatch) -> Tensor:
        """The latent vectors of queries (N, rank) to (N, heads, head_dim)."""
        config = self._config
        return self._rotated(self._q(latent).view(-1, config.heads, config.head_dim), batch)

    def head_weights(self, x: Tensor) -> Tensor:
        """x (N, hidden) to the weight of each head (N, heads), in float32."""
        config = self._config
        return linear(x, self._weights).mul_((config.heads * config.head_dim) ** -0.5)

    def scores(self, queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """The score (T, S) of each of the keys (S, head_dim) for queries (T, heads, head_dim)."""
        scores = torch.zeros(len(queries), len(keys), device=keys.device)
        for head in range(self._config.heads):
            products = linear(queries[:, head].contiguous(), keys)
            scores.addcmul_(products.relu_(), weights[:, head, None])
        return scores

    def _rotated(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        cos, sin = self._rope.angles(batch)
        return rotate(x, cos, sin, interleaved=self._config.interleaved)


class IndexedAttentionModule(LatentAttentionModule):
    """MLA; in sequences with more tokens than a token attends to, these are chosen before."""

    def __init__(
        self, config: IndexedAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        super().__init__(config, weights, rope)
        self._indexer = IndexerModule(config.indexer, weights, self._rope)
        self._indexed, self._top_k = config.indexer, config.indexer.top_k

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Caches) -> Tensor:  # type: ignore[override]
        """x (N, hidden) to (N, hidden); writes latent vectors and keys of the new tokens."""
        kv, index_kv = cache[0][0].kv, cache[1][0].kv
        group = batch.attention[cache[0][0].group]
        latent = self._q_norm(self._q_a(x))
        queries = self._absorbed(self._q(latent), batch)
        self._write(x, batch, kv, group)
        index_kv.write(group.slot_mapping, (self._indexer.keys(x, batch),))
        if all(context <= self._top_k for _, context in group.queries):
            return self._project(self._backend.attend(queries, kv, group, scale=self._mla.scale))
        index_queries = self._indexer.queries(latent, batch)
        index_weights = self._indexer.head_weights(x)
        outs = []
        for (rows, context), table in zip(
            group.queries, group.tables(kv.block_tokens), strict=True
        ):
            (index_keys,) = index_kv.read(table, 0, context)
            scores = self._indexer.scores(
                index_queries[rows], index_weights[rows], index_keys[0].float()
            )
            (keys,) = kv.read(table, 0, context)
            choice = choose_keys(scores, self._top_k)
            outs.append(
                attend_to_keys(
                    queries[rows], computable(keys[0]), kv.value_dim, choice, self._mla.scale
                )
            )
        return self._project(torch.cat(outs))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        super().add_cache(builder, device)
        dim = self._indexed.head_dim
        builder.add_paged(
            PagedKV(
                1,
                dim,
                dim,
                block_tokens=builder.config.size.block_tokens,
                dtype=builder.config.dtype,
                device=device,
                values_in_keys=True,
            )
        )
