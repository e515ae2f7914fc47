"""Layers that look at pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mrs.architecture.layers import CrossAttention, Layer
from mrs.cache.cache_space import CacheBuilder
from mrs.cache.cross_attention_kv import CrossAttentionCache, ImageKeys
from mrs.kernels.paged import Queries
from mrs.kernels.softmax_attention import attend_to_all
from mrs.model.batch import ForwardBatch, ImageFeatures
from mrs.model.modules import build_feed_forward
from mrs.model.weights import ModelWeights


@dataclass(frozen=True)
class CrossAttentionSpan:
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

    def spans(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[CrossAttentionCache]
    ) -> list[CrossAttentionSpan]:
        """Which of the rows x (N, hidden) see what; new images are kept."""
        found: list[CrossAttentionSpan] = []
        for queries, each in zip(batch.queries, cache, strict=True):
            rows = queries.rows
            images = [i for i in batch.images if rows.start <= int(i.rows[0]) < rows.stop]
            start = queries.context - rows.stop
            for image in images:
                each.add(self._keys(image, int(image.rows[0]) + start, x))
            found += _stretches(queries, images, each)
        return found

    def __call__(self, x: Tensor, spans: list[CrossAttentionSpan]) -> Tensor:
        """x (M, hidden) are the rows of all spans one after another; to (M, hidden)."""
        part = self._part
        q = self._q_norm(self._q(x).view(-1, part.heads, part.head_dim))
        counts = [look.rows.stop - look.rows.start for look in spans]
        mixed = [
            attend_to_all(some, look.keys, look.values, scale=part.scale)
            for some, look in zip(torch.split(q, counts), spans, strict=True)
        ]
        return self._o(mixed[0] if len(mixed) == 1 else torch.cat(mixed))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        dtype = builder.config.dtype
        builder.add(lambda: CrossAttentionCache(dtype=dtype, device=device))

    def _keys(self, image: ImageFeatures, place: int, x: Tensor) -> ImageKeys:
        features = image.features.to(x.device, x.dtype)
        shape = (-1, self._part.kv_heads, self._part.head_dim)
        keys = self._k_norm(self._k(features).view(shape))
        values = self._v(features).view(shape)
        return ImageKeys(
            place, keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()
        )


def _stretches(
    queries: Queries, images: Sequence[ImageFeatures], cache: CrossAttentionCache
) -> Iterator[CrossAttentionSpan]:
    """Rows of a sequence that see the same."""
    rows, start = queries.rows, queries.context - queries.rows.stop
    shown = [int(image.rows[0]) for image in images]
    for first, end in pairwise([rows.start, *shown, rows.stop]):
        seen = cache.visible_at(first + start)
        if first < end and seen is not None:
            yield CrossAttentionSpan(slice(first, end), *seen)


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

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[CrossAttentionCache]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        spans = self.mixer.spans(x, batch, cache)
        if not spans:
            return x
        rows = torch.cat([torch.arange(look.rows.start, look.rows.stop) for look in spans])
        rows = rows.to(x.device)
        some = x[rows]
        some = some + self._mixer_gate * self.mixer(self._mixer_norm(some), spans)
        some = some + self._gate * self._feed_forward(self._norm(some))
        return x.index_copy(0, rows, some)
