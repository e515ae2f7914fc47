"""Grouped-head attention as a part of a layer."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from mrs.cache.growing import GrowingCache
from mrs.cache.layer import KeyValueCache
from mrs.cache.rotating import RotatingCache
from mrs.cache.sequence import CacheRoom
from mrs.families.spec import Attention
from mrs.kernels.attention import attend
from mrs.model.rope import RopeTable
from mrs.model.segments import Segment
from mrs.model.weights import ModelWeights


class AttentionPart:
    """Projects to queries, keys and values, attends within each sequence, projects back."""

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

    def __call__(self, x: Tensor, segments: list[Segment], layer: int) -> Tensor:
        """x (N, hidden) holds the new tokens of all segments one after another."""
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
        mixed = x.new_empty(x.shape[0], part.heads * part.head_dim)
        for segment in segments:
            rows = segment.rows
            cache = cast(KeyValueCache, segment.memory.layers[layer])
            mixed[rows] = self._attend(q[rows], k[rows], v[rows], cache, segment)
        if gate is not None:
            mixed *= torch.sigmoid(gate).flatten(1)
        return self._o(mixed)

    def new_cache(self, room: CacheRoom, device: torch.device) -> KeyValueCache:
        part = self._part
        shape = (part.kv_heads, part.head_dim, part.head_dim)
        if part.window is not None and part.window + room.chunk_tokens < room.capacity_tokens:
            return RotatingCache(
                *shape,
                window=part.window,
                chunk=room.chunk_tokens,
                dtype=room.dtype,
                device=device,
            )
        return GrowingCache(*shape, capacity=room.capacity_tokens, dtype=room.dtype, device=device)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KeyValueCache, segment: Segment
    ) -> Tensor:
        if self._rope is not None:
            total = max(segment.total_tokens, cache.length + len(q))
            place = cache.length + segment.offset, total, segment.positions
            q, k = self._rope.rotate(q, *place), self._rope.rotate(k, *place)
        keys, values = cache.append(k.transpose(0, 1), v.transpose(0, 1))
        last_seen = segment.last_seen
        if last_seen is not None:
            last_seen = last_seen - (cache.length - keys.shape[1])
        part = self._part
        return attend(
            q,
            keys,
            values,
            scale=part.scale,
            window=part.window,
            softcap=part.softcap,
            sinks=self._sinks,
            last_seen=last_seen,
        )
