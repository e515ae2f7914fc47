"""Multi-head latent attention, to all tokens or to chosen ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.paged_kv import PagedKVCache
from mrs.graph.operations import ChosenKeys
from mrs.kernels.attention_backend import AttentionBackend, attention_backend
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.dense_products import linear, multiply_heads
from mrs.kernels.paged import AttentionBatch, PagedKV, computable
from mrs.kernels.rotate import rotate
from mrs.kernels.selected_attention import KeyChoice, attend_to_keys, choose_keys
from mrs.layers.latent_attention.spec import (
    BorrowedChoiceAttention,
    IndexedAttention,
    Indexer,
    LatentAttention,
)
from mrs.layers.rope.module import RopeTable, scale_queries
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class LatentAttentionModule:
    """MLA with the key and value projections absorbed into queries and outputs.

    The cache has one latent vector and one rotated key for each token, shared by all heads. The
    latent vectors are never expanded to keys and values: queries are multiplied by `k_b` instead,
    and the attention output by `v_b`. So all heads attend to one key head.
    """

    _backend: AttentionBackend

    def __init__(self, mla: LatentAttention, weights: ModelWeights, rope: RopeTable | None) -> None:
        assert rope is not None
        self._mla = mla
        self._options = AttentionOptions(mla.scale)
        self._rope = rope
        if mla.q_lora_rank is None:
            self._q = weights.linear("mixer.q")
        else:
            self._q_a, self._q = weights.linear("mixer.q_a"), weights.linear("mixer.q_b")
            self._q_norm = weights.norm("mixer.q_a_norm", mla.norm)
        self._kv_a = weights.linear("mixer.kv_a")
        self._kv_norm = weights.norm("mixer.kv_a_norm", mla.norm)
        self._k_b = weights.vector("mixer.k_b.weight")
        self._v_b = weights.vector("mixer.v_b.weight")
        self._o = weights.linear("mixer.o")

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        """x (N, hidden) to (N, hidden); writes the latent vectors of the new tokens."""
        kv, group = cache[0].kv, batch.attention[cache[0].group]
        queries = self._absorbed(self._queries(x), batch)
        self._write(x, batch, kv, group)
        return self._project(self._backend.attend(queries, kv, group, self._options))

    def _absorbed(self, q: Tensor, batch: ForwardBatch) -> Tensor:
        """Queries of the cached vectors: (N, heads * (nope + rope.dim)) to (N, heads, key dim)."""
        mla = self._mla
        q = q.view(-1, mla.heads, mla.qk_nope_head_dim + mla.rope.dim)
        q_nope, q_rope = q[..., : mla.qk_nope_head_dim], q[..., mla.qk_nope_head_dim :]
        k_b = self._k_b.transpose(1, 2)
        queries = self._with_rope(multiply_heads(q_nope, k_b), q_rope, batch)
        if mla.query_scale is not None:
            scale_queries(queries, mla.query_scale, batch)
        return queries

    def _write(self, x: Tensor, batch: ForwardBatch, kv: PagedKV, group: AttentionBatch) -> None:
        mla = self._mla
        compressed = self._kv_a(x)
        latent = self._kv_norm(compressed[:, : mla.kv_lora_rank])
        k_rope = compressed[:, mla.kv_lora_rank :]
        keys = self._with_rope(latent[:, None], k_rope[:, None], batch)
        self._backend.write(kv, group, keys, None)

    def _project(self, out: Tensor) -> Tensor:
        """The latent results of all heads (N, heads * kv_lora_rank) to (N, hidden)."""
        out = out.view(-1, self._mla.heads, self._mla.kv_lora_rank)
        return self._o(multiply_heads(out, self._v_b).flatten(1))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        mla = self._mla
        kv = PagedKV(
            1,
            mla.kv_lora_rank + mla.rope.dim,
            mla.kv_lora_rank,
            block_tokens=builder.config.size.block_tokens,
            dtype=builder.config.dtype,
            device=device,
            values_in_keys=True,
        )
        self._backend = attention_backend(kv)
        builder.add_paged(kv)

    def _queries(self, x: Tensor) -> Tensor:
        """(N, heads * (qk_nope_head_dim + rope.dim)), not rotated yet."""
        if self._mla.q_lora_rank is not None:
            x = self._q_norm(self._q_a(x))
        return self._q(x)

    def _with_rope(self, nope: Tensor, rope: Tensor, batch: ForwardBatch) -> Tensor:
        """cat(nope, rotate(rope)): (N, H, latent) and (N, H, rope.dim)."""
        return torch.cat((nope, self._rope.rotate(rope, batch)), dim=-1)


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


class ChosenAttentionModule(LatentAttentionModule):
    """MLA; in sequences with more tokens than a token attends to, these are chosen before."""

    def _attend_chosen(
        self,
        queries: Tensor,
        kv: PagedKV,
        group: AttentionBatch,
        choices: Iterable[KeyChoice],
    ) -> Tensor:
        """Queries (N, heads, key dim) to (N, hidden); a choice for each sequence."""
        outs = []
        tables = group.tables(kv.block_tokens)
        for (rows, context), table, choice in zip(group.queries, tables, choices, strict=True):
            (keys,) = kv.read(table, 0, context)
            on_device = (choice[0].to(keys.device), choice[1].to(keys.device))
            outs.append(
                attend_to_keys(
                    queries[rows], computable(keys[0]), kv.value_dim, on_device, self._mla.scale
                )
            )
        return self._project(torch.cat(outs))


class IndexedAttentionModule(ChosenAttentionModule):
    """The tokens are those that the layer's own indexer chooses."""

    def __init__(
        self, config: IndexedAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        super().__init__(config, weights, rope)
        self._indexer = IndexerModule(config.indexer, weights, self._rope)
        self._indexed, self._top_k = config.indexer, config.indexer.top_k
        self._lends_choice = config.lends_choice

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Caches) -> Tensor:  # type: ignore[override]
        """x (N, hidden) to (N, hidden); writes latent vectors and keys of the new tokens."""
        kv, index_kv = cache[0][0].kv, cache[1][0].kv
        group = batch.attention[cache[0][0].group]
        latent = self._q_norm(self._q_a(x))
        queries = self._absorbed(self._q(latent), batch)
        self._write(x, batch, kv, group)
        index_kv.write(group.slot_mapping, (self._indexer.keys(x, batch),))
        batch.choices.clear()
        batch.given.pop(ChosenKeys(self._top_k), None)
        if all(context <= self._top_k for _, context in group.queries):
            return self._project(self._backend.attend(queries, kv, group, self._options))
        choices = self._choices(x, latent, batch, index_kv, group)
        if self._lends_choice:
            batch.choices.extend(choices)
            choices = iter(batch.choices)
        return self._attend_chosen(queries, kv, group, choices)

    def _choices(
        self,
        x: Tensor,
        latent: Tensor,
        batch: ForwardBatch,
        index_kv: PagedKV,
        group: AttentionBatch,
    ) -> Iterator[KeyChoice]:
        """What `choose_keys` returns for each sequence."""
        queries = self._indexer.queries(latent, batch)
        weights = self._indexer.head_weights(x)
        tables = group.tables(index_kv.block_tokens)
        for (rows, context), table in zip(group.queries, tables, strict=True):
            (keys,) = index_kv.read(table, 0, context)
            scores = self._indexer.scores(queries[rows], weights[rows], keys[0].float())
            yield choose_keys(scores, self._top_k)

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


def chosen_positions(batch: ForwardBatch, top_k: int) -> Tensor:
    """The choices of a batch as a native layer reads them: (N, top_k) int32, called float32.

    Those of the last indexer that torch computed; else room for them, with no position in it.
    """
    positions = torch.full((len(batch.token_ids), top_k), -1, dtype=torch.int32)
    for queries, (indices, is_visible) in zip(batch.queries, batch.choices, strict=False):
        later = indices.masked_fill(~is_visible, queries.context)  # to the end
        positions[queries.rows, : indices.shape[1]] = later.sort(dim=-1).values.int()
    return positions.view(torch.float32)


def _native_choices(batch: ForwardBatch, group: AttentionBatch, top_k: int) -> list[KeyChoice]:
    """The choices that a native layer has left; none if every token attends to all."""
    chosen = batch.given.get(ChosenKeys(top_k))
    if chosen is None or all(context <= top_k for _, context in group.queries):
        return []
    choices = []
    for rows, context in group.queries:
        ends = torch.arange(context - (rows.stop - rows.start), context)[:, None]
        places = torch.arange(min(top_k, context))
        positions = chosen.view(torch.int32)[rows, : len(places)].long()
        if context <= top_k:
            positions = places.expand(len(ends), -1)
        is_visible = places <= ends
        choices.append((positions.masked_fill(~is_visible, 0), is_visible))
    return choices


class BorrowedChoiceAttentionModule(ChosenAttentionModule):
    """The tokens are those that an earlier layer has chosen: all if it has left no choice."""

    def __init__(
        self, config: BorrowedChoiceAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        super().__init__(config, weights, rope)
        self._top_k = config.top_k

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        """x (N, hidden) to (N, hidden); writes the latent vectors of the new tokens."""
        kv, group = cache[0].kv, batch.attention[cache[0].group]
        choices = batch.choices or _native_choices(batch, group, self._top_k)
        if not choices:
            return super().__call__(x, batch, cache)
        queries = self._absorbed(self._queries(x), batch)
        self._write(x, batch, kv, group)
        return self._attend_chosen(queries, kv, group, choices)
