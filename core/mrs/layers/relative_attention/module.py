"""Attention by distance, with torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.distances import bias_buckets, by_pairs, distances, same_by_pairs, span_rows
from mrs.kernels.workspace.attention import heads_at_once
from mrs.layers.relative_attention.spec import (
    BiasedAttention,
    DisentangledAttention,
    RelativeAttention,
)
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights

#: What is added to the scores of some heads: of their queries and keys (H, T, D), (H, T, T).
Addends = Callable[[Tensor, Tensor, slice], Tensor]


class RelativeAttentionModule(ABC):
    """Attention of the tokens of a batch, whose sequences are whole: nothing is cached."""

    def __init__(
        self, config: RelativeAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._scale = config.scale
        self._table = weights.of_model().vector("distances.weight")

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        builder.add(lambda: RecurrentStateCache(device=device))

    @abstractmethod
    def _prepare(self, longest: int, like: Tensor) -> Callable[[int], Addends]:
        """What is added in texts of up to `longest` tokens, by their length."""

    def attend_both_ways(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """q, k and v (N, H, D) to (N, H * D)."""
        texts = [rows for rows, _ in batch.queries]
        of_length = self._prepare(max(rows.stop - rows.start for rows in texts), q)
        outs = [
            self._attend(q[rows], k[rows], v[rows], of_length(rows.stop - rows.start))
            for rows in texts
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, addends: Addends) -> Tensor:
        """Some heads at a time, which bounds the memory of the scores."""
        tokens, heads, _ = q.shape
        at_once = heads_at_once(tokens, tokens)
        parts = (slice(first, first + at_once) for first in range(0, heads, at_once))
        outs = [self._attend_some(q, k, v, addends, some) for some in parts]
        return (outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)).flatten(1)

    def _attend_some(
        self, q: Tensor, k: Tensor, v: Tensor, addends: Addends, some: slice
    ) -> Tensor:
        """The attention of `some` heads: (T, H, D)."""
        queries, keys, values = (x[None, :, some].transpose(1, 2) for x in (q, k, v))
        added = addends(queries[0], keys[0], some)[None]  # (1, H, T, T)
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=added, scale=self._scale
        )
        return mixed[0].transpose(0, 1)


class BiasedAttentionModule(RelativeAttentionModule):
    """A learned number for each bucket and head."""

    def __init__(
        self, config: BiasedAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        super().__init__(config, weights, rope)
        self._buckets = config.buckets

    def _prepare(self, longest: int, like: Tensor) -> Callable[[int], Addends]:
        rows = bias_buckets(distances(longest), self._buckets).to(self._table.device)
        biases = self._table[rows].T.to(like.device, like.dtype)  # (H, 2 * longest - 1)

        def of_length(tokens: int) -> Addends:
            own = biases[:, longest - tokens : longest + tokens - 1]
            return lambda q, k, heads: same_by_pairs(own[heads])

        return of_length


class _Positions(NamedTuple):
    """What relative positions are mapped to: (H, rows, D) each, None for one that is not there."""

    keys: Tensor | None
    queries: Tensor | None


class DisentangledAttentionModule(RelativeAttentionModule):
    """Scores of queries with the keys of distances, and of keys with their queries."""

    def __init__(
        self, config: DisentangledAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        super().__init__(config, weights, rope)
        self._config = config
        maps = {slot[-1]: weights.linear(slot) for slot in config.maps}
        self._keys, self._queries = maps.get("k"), maps.get("q")
        norm = config.norm
        self._norm = weights.of_model().norm("distances_norm", norm) if norm else None

    def _prepare(self, longest: int, like: Tensor) -> Callable[[int], Addends]:
        config = self._config
        rows = span_rows(distances(longest), config.span, config.buckets, config.most_distance)
        first = int(rows.min())
        positions = self._mapped(slice(first, int(rows.max()) + 1), like)
        rows = (rows - first).to(like.device)

        def of_length(tokens: int) -> Addends:
            own = rows[longest - tokens : longest + tokens - 1]
            return lambda q, k, heads: self._addends(q, k, heads, positions, own)

        return of_length

    def _mapped(self, rows: slice, like: Tensor) -> _Positions:
        """Only the rows of distances that are there are computed."""
        table = self._table[rows]
        table = (table if self._norm is None else self._norm(table)).to(like.device, like.dtype)
        mapped = (
            None if each is None else each(table).view(len(table), self._config.heads, -1)
            for each in (self._keys, self._queries)
        )
        return _Positions(*(None if x is None else x.transpose(0, 1) for x in mapped))

    def _addends(
        self, q: Tensor, k: Tensor, heads: slice, positions: _Positions, rows: Tensor
    ) -> Tensor:
        """Those of (H, T, D) with the `rows` (2 T - 1) of their distances, in order of the keys."""
        added = None
        if positions.keys is not None:
            scores = q @ positions.keys[heads].transpose(1, 2)
            added = by_pairs(scores.index_select(2, rows)).clone()
        if positions.queries is not None:
            scores = k @ positions.queries[heads].transpose(1, 2)
            turned = by_pairs(scores.index_select(2, rows.flip(0))).transpose(1, 2)
            added = turned.clone() if added is None else added.add_(turned)
        assert added is not None
        return added.mul_(self._scale)
