"""Layers whose tokens attend to images (Llama 3.2 Vision)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.cross_attention_kv import CrossAttentionCache, ImageKeys
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.paged import Queries
from mrs.kernels.softmax_attention import attend_to_all
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.layer import Layer
from mrs.layers.mlp.module import MlpModule
from mrs.layers.mlp.spec import Mlp
from mrs.model.batch import ForwardBatch, ImageFeatures
from mrs.model.model_weights import ModelWeights


@dataclass(frozen=True)
class CrossAttentionSpan:
    """Adjacent rows of a batch, and the keys and values (KV, S, D) that they attend to."""

    rows: slice
    keys: Tensor
    values: Tensor


class CrossAttentionModule:
    """Projects the features of each image once to keys and values, and tokens to queries."""

    def __init__(self, config: CrossAttention, weights: ModelWeights) -> None:
        self._config = config
        self._options = AttentionOptions(config.scale)
        self._q, self._k = weights.linear("cross.q"), weights.linear("cross.k")
        self._v, self._o = weights.linear("cross.v"), weights.linear("cross.o")
        self._q_norm = weights.norm("cross.q_norm", config.norm)
        self._k_norm = weights.norm("cross.k_norm", config.norm)

    def spans(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[CrossAttentionCache]
    ) -> list[CrossAttentionSpan]:
        """The rows of x (N, hidden) that attend to images; caches the keys of new images."""
        spans: list[CrossAttentionSpan] = []
        for queries, each in zip(batch.queries, cache, strict=True):
            rows = queries.rows
            images = [i for i in batch.images if rows.start <= int(i.rows[0]) < rows.stop]
            start = queries.context - rows.stop
            for image in images:
                each.add(self._image_keys(image, int(image.rows[0]) + start, x))
            spans += _sequence_spans(queries, images, each)
        return spans

    def __call__(self, x: Tensor, spans: list[CrossAttentionSpan]) -> Tensor:
        """x (M, hidden), the rows of all spans in order, to (M, hidden)."""
        config, options = self._config, self._options
        q = self._q_norm(self._q(x).view(-1, config.heads, config.head_dim))
        counts = [span.rows.stop - span.rows.start for span in spans]
        outs = [
            attend_to_all(span_q, span.keys, span.values, options)
            for span_q, span in zip(torch.split(q, counts), spans, strict=True)
        ]
        return self._o(outs[0] if len(outs) == 1 else torch.cat(outs))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        dtype = builder.config.dtype
        builder.add(lambda: CrossAttentionCache(dtype=dtype, device=device))

    def _image_keys(self, image: ImageFeatures, position: int, x: Tensor) -> ImageKeys:
        """Keys and values of the image whose token is at `position` of the sequence."""
        features = image.features.to(x.device, x.dtype)
        shape = (-1, self._config.kv_heads, self._config.head_dim)
        keys = self._k_norm(self._k(features).view(shape))
        values = self._v(features).view(shape)
        return ImageKeys(
            position, keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()
        )


def _sequence_spans(
    queries: Queries, images: Sequence[ImageFeatures], cache: CrossAttentionCache
) -> Iterator[CrossAttentionSpan]:
    """One sequence's rows, cut where a new image becomes visible; rows without any are left out."""
    rows, start = queries.rows, queries.context - queries.rows.stop
    image_rows = [int(image.rows[0]) for image in images]
    for first, end in pairwise([rows.start, *image_rows, rows.stop]):
        visible = cache.visible_at(first + start)
        if first < end and visible is not None:
            yield CrossAttentionSpan(slice(first, end), *visible)


class CrossAttentionLayer:
    """x + gate * attention(norm(x)), then x + gate * feed_forward(norm(x)).

    Rows before the first image of their sequence pass the layer unchanged.
    """

    def __init__(self, layer: Layer, weights: ModelWeights) -> None:
        assert isinstance(layer.mixer, CrossAttention)
        self.mixer = CrossAttentionModule(layer.mixer, weights)
        assert isinstance(layer.feed_forward, Mlp)
        self._feed_forward = MlpModule(layer.feed_forward, weights, norm=layer.norm)
        self._mixer_norm = weights.norm("mixer.norm", layer.norm)
        self._mixer_gate = weights.gate("mixer.residual_gate")
        self._gate = weights.gate("ffn.residual_gate")

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[CrossAttentionCache]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        spans = self.mixer.spans(x, batch, cache)
        if not spans:
            return x
        rows = torch.cat([torch.arange(span.rows.start, span.rows.stop) for span in spans])
        rows = rows.to(x.device)
        y = x[rows]
        y = y + self.mixer(self._mixer_norm(y), spans).mul_(self._mixer_gate)
        y = y + self._feed_forward(y).mul_(self._gate)
        return x.index_copy(0, rows, y)
