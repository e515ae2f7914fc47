"""A short convolution as the part of a layer that mixes tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.architecture.layers import ShortConvolution
from mrs.cache.cache_space import CacheBuilder
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.causal_convolution import causal_convolution
from mrs.model.batch import ForwardBatch
from mrs.model.rope import RopeTable
from mrs.model.weights import ModelWeights


class ConvolutionPart:
    """Convolves what one gate lets in, multiplies by another and projects back."""

    def __init__(
        self, part: ShortConvolution, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._part = part
        self._in, self._out = weights.linear("mixer.in"), weights.linear("mixer.out")
        self._weight = weights.vector("mixer.conv.weight")
        self._bias = weights.optional_vector("mixer.conv.bias")

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        gate_in, gate_out, inner = self._in(x).chunk(3, dim=-1)
        inner = gate_in * inner
        mixed = torch.empty_like(inner)
        for (rows, _), each in zip(batch.queries, cache, strict=True):
            (state,) = each.tensors
            mixed[rows] = causal_convolution(inner[rows], state, self._weight, self._bias)
        return self._out(gate_out * mixed)

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        shape = (self._part.channels, self._part.kernel_tokens - 1)
        dtype = builder.config.dtype
        builder.add(lambda: RecurrentStateCache(shape, dtypes=(dtype,), device=device))
