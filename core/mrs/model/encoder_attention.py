"""Attention of an encoder's layer: each token attends to all tokens of its sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.softmax_attention import attend_both_ways
from mrs.model.attention import AttentionModule
from mrs.model.batch import ForwardBatch


class EncoderAttentionModule(AttentionModule):
    """The projections of a decoder's attention, without its cache.

    The tokens of a batch are whole sequences.
    """

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        builder.add(lambda: RecurrentStateCache(device=device))

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        batch: ForwardBatch,
        cache: PagedKVCache,
    ) -> Tensor:
        config = self._config
        if self._rope is not None:
            q, k = self._rope.rotate(q, batch), self._rope.rotate(k, batch)
        outs = [
            attend_both_ways(q[rows], k[rows], v[rows], scale=config.scale, window=config.window)
            for rows, _ in batch.queries
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)
