"""Grouped-head attention as a part of a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.architecture.layers import Attention
from mrs.cache.cache_space import CacheBuilder
from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.attention_backend import AttentionBackend, attention_backend
from mrs.kernels.paged import PagedKV
from mrs.model.batch import ForwardBatch
from mrs.model.rope import RopeTable
from mrs.model.weights import ModelWeights


class AttentionModule:
    """Projects to queries, keys and values, attends within each sequence, projects back."""

    _backend: AttentionBackend

    def __init__(self, part: Attention, weights: ModelWeights, rope: RopeTable | None) -> None:
        self._part = part
        self._rope = rope
        self._q, self._k = weights.linear("mixer.q"), weights.linear("mixer.k")
        self._v, self._o = weights.linear("mixer.v"), weights.linear("mixer.o")
        self._sinks = weights.vector("mixer.sinks") if part.sinks else None
        self._q_norm = self._k_norm = None
        if part.qk_norm is not None:
            self._q_norm = weights.norm("mixer.q_norm", part.qk_norm)
            self._k_norm = weights.norm("mixer.k_norm", part.qk_norm)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        part = self._part
        q, k = self._q(x), self._k(x)
        gate = None
        if part.gated:
            q, gate = q.view(-1, part.heads, 2, part.head_dim).unbind(2)
        if self._q_norm and self._k_norm and part.qk_norm_whole:
            q, k = self._q_norm(q), self._k_norm(k)
        q = q.reshape(-1, part.heads, part.head_dim)
        k = k.view(-1, part.kv_heads, part.head_dim)
        v = self._v(x).view(-1, part.kv_heads, part.head_dim)
        if self._q_norm and self._k_norm and not part.qk_norm_whole:
            q, k = self._q_norm(q), self._k_norm(k)
        mixed = self._attend(q, k, v, batch, cache[0])
        if gate is not None:
            mixed *= torch.sigmoid(gate).flatten(1)
        return self._o(mixed)

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        part, config = self._part, builder.config
        kv = PagedKV(
            part.kv_heads,
            part.head_dim,
            part.head_dim,
            block_tokens=config.size.block_tokens,
            dtype=config.dtype,
            device=device,
        )
        self._backend = attention_backend(kv)
        builder.add_paged(kv, part.window)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch, cache: PagedKVCache
    ) -> Tensor:
        part, group = self._part, batch.attention[cache.group]
        if self._rope is not None:
            q, k = self._rope.rotate(q, batch), self._rope.rotate(k, batch)
        self._backend.write(cache.kv, group, k, v)
        return self._backend.attend(
            q,
            cache.kv,
            group,
            scale=part.scale,
            window=part.window,
            softcap=part.softcap,
            sinks=self._sinks,
        )
