"""Layers that look at pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from mrs.cache.images import ImageCache, ImageKeys
from mrs.cache.sequence import CacheRoom
from mrs.families.spec import CrossAttention, Layer
from mrs.kernels.cross_attention import attend_to_all
from mrs.model.parts import build_feed_forward
from mrs.model.segments import Segment, Sight
from mrs.model.weights import ModelWeights


@dataclass(frozen=True)
class Look:
    """Adjacent rows of a batch, and the keys and values (KV, S, D) that they see."""

    rows: slice
    keys: Tensor
    values: Tensor


class CrossAttentionPart:
    """Maps pictures to keys and values, once each, and rows that see them to queries."""

    def __init__(self, part: CrossAttention, weights: ModelWeights) -> None:
        self._part = part
        self._q, self._k = weights.linear("cross.q"), weights.linear("cross.k")
        self._v, self._o = weights.linear("cross.v"), weights.linear("cross.o")
        self._q_norm = weights.norm("cross.q_norm", part.norm)
        self._k_norm = weights.norm("cross.k_norm", part.norm)

    def looks(self, x: Tensor, segments: list[Segment], layer: int) -> list[Look]:
        """Which of the rows x (N, hidden) see what; new pictures and tokens are remembered."""
        found: list[Look] = []
        for segment in segments:
            cache = cast(ImageCache, segment.memory.layers[layer])
            start = cache.length - segment.rows.start
            for sight in segment.sights:
                cache.add(self._keys(sight, int(sight.rows[0]) + start, x))
            cache.advance(segment.rows.stop - segment.rows.start)
            found += _stretches(segment, cache, start)
        return found

    def __call__(self, x: Tensor, looks: list[Look]) -> Tensor:
        """x (M, hidden) are the rows of all looks one after another; to (M, hidden)."""
        part = self._part
        q = self._q_norm(self._q(x).view(-1, part.heads, part.head_dim))
        counts = [look.rows.stop - look.rows.start for look in looks]
        mixed = [
            attend_to_all(some, look.keys, look.values, scale=part.scale)
            for some, look in zip(torch.split(q, counts), looks, strict=True)
        ]
        return self._o(mixed[0] if len(mixed) == 1 else torch.cat(mixed))

    def new_cache(self, room: CacheRoom, device: torch.device) -> ImageCache:
        return ImageCache(dtype=room.dtype, device=device)

    def _keys(self, sight: Sight, place: int, x: Tensor) -> ImageKeys:
        features = sight.features.to(x.device, x.dtype)
        shape = (-1, self._part.kv_heads, self._part.head_dim)
        keys = self._k_norm(self._k(features).view(shape))
        values = self._v(features).view(shape)
        return ImageKeys(
            place, keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()
        )


def _stretches(segment: Segment, cache: ImageCache, start: int) -> Iterator[Look]:
    """Rows of a segment that see the same; `start` is added to a row for its place."""
    shown = [int(sight.rows[0]) for sight in segment.sights]
    for first, end in pairwise([segment.rows.start, *shown, segment.rows.stop]):
        seen = cache.seen_at(first + start)
        if first < end and seen is not None:
            yield Look(slice(first, end), *seen)


class CrossAttentionLayer:
    """x + gate * attention(norm(x)), then x + gate * feed_forward(norm(x)), for rows that see.

    The others pass as they are.
    """

    def __init__(self, layer: Layer, weights: ModelWeights) -> None:
        assert isinstance(layer.mixer, CrossAttention)
        self.mixer = CrossAttentionPart(layer.mixer, weights)
        self._feed_forward = build_feed_forward(layer.feed_forward, weights)
        self._mixer_norm = weights.norm("mixer.norm", layer.norm)
        self._norm = weights.norm("ffn.norm", layer.norm)
        self._mixer_gate = weights.residual_gate("mixer")
        self._gate = weights.residual_gate("ffn")

    def __call__(self, x: Tensor, segments: list[Segment], index: int) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        looks = self.mixer.looks(x, segments, index)
        if not looks:
            return x
        rows = torch.cat([torch.arange(look.rows.start, look.rows.stop) for look in looks])
        rows = rows.to(x.device)
        some = x[rows]
        some = some + self._mixer_gate * self.mixer(self._mixer_norm(some), looks)
        some = some + self._gate * self._feed_forward(self._norm(some))
        return x.index_copy(0, rows, some)
