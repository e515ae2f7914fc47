"""Layers whose tokens attend to images (Llama 3.2 Vision)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.cross_attention_kv import CrossAttentionCache
from mrs.graph.attention_operations import image_graph
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.paged import Queries
from mrs.kernels.softmax_attention import attend_to_all
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.layer import Layer
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch, ImageFeatures
from mrs.model.decoder_layer import DecoderLayer
from mrs.model.model_weights import ModelWeights
from mrs.model.torch_operations import TorchOperations


@dataclass(frozen=True)
class CrossAttentionSpan:
    """Adjacent rows of a batch, and the keys and values (KV, S, D) that they attend to."""

    rows: slice
    keys: Tensor
    values: Tensor


class CrossAttentionModule:
    """Caches keys and values of each image once, and attends to them."""

    def __init__(
        self, config: CrossAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._options = AttentionOptions(config.scale)
        graph = image_graph(config, weights.matrix("cross.o").shape[0])
        self._write = TorchOperations(graph.operations, graph, weights)

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
                place = each, int(image.rows[0]) + start
                self._write(image.features.to(x.device, x.dtype), cache=place)
            spans += _sequence_spans(queries, images, each)
        return spans

    def attend_to_images(self, q: Tensor, spans: Sequence[CrossAttentionSpan]) -> Tensor:
        """q (M, H, D), the rows of all spans in order, to (M, H * D)."""
        counts = [span.rows.stop - span.rows.start for span in spans]
        outs = [
            attend_to_all(span_q, span.keys, span.values, self._options)
            for span_q, span in zip(torch.split(q, counts), spans, strict=True)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        dtype = builder.config.float_dtype
        builder.add(lambda: CrossAttentionCache(dtype=dtype, device=device))


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
    """A layer of the rows that attend to images.

    Rows before the first image of their sequence pass it unchanged. The native library may compute
    it for one sequence, all of whose rows attend to the same images.
    """

    def __init__(self, layer: Layer, hidden_size: int, index: int, weights: ModelWeights) -> None:
        arguments = layer, hidden_size, index, weights, None
        self._of_rows = DecoderLayer(*arguments, reads_elsewhere=True, owns_input=True)
        self.mixer, self.has_host_choices = self._of_rows.mixer, self._of_rows.has_host_choices
        self.native = DecoderLayer(*arguments).native

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[CrossAttentionCache]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        spans = self.mixer.spans(x, batch, cache)
        if not spans:
            return x
        rows = torch.cat([torch.arange(span.rows.start, span.rows.stop) for span in spans])
        rows = rows.to(x.device)
        return x.index_copy(0, rows, self._of_rows(x[rows], batch, spans))
