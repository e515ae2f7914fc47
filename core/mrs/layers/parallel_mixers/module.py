"""Attention and a state space in parallel: the token mixer of Falcon-H1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.layers.attention.module import AttentionModule
from mrs.layers.parallel_mixers.spec import ParallelMixers
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights
from mrs.model.modules import StateCaches

Caches = tuple[Sequence[PagedKVCache], Sequence[RecurrentStateCache]]


class ParallelMixersModule:
    """Each of both has a cache of its own."""

    def __init__(
        self, config: ParallelMixers, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._attention = AttentionModule(config.attention, weights, rope)
        self._state = StateCaches(config.state)

    def write(self, k: Tensor, v: Tensor, batch: ForwardBatch, cache: Caches) -> None:
        self._attention.write(k, v, batch, cache[0])

    def attend(self, q: Tensor, batch: ForwardBatch, cache: Caches) -> Tensor:
        return self._attention.attend(q, batch, cache[0])

    def states(self, cache: Caches) -> Sequence[RecurrentStateCache]:
        return self._state.states(cache[1])

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        self._attention.add_cache(builder, device)
        self._state.add_cache(builder, device)
