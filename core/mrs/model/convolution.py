"""A short convolution as the part of a layer that mixes tokens."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from mrs.cache.recurrent import RecurrentCache
from mrs.cache.sequence import CacheRoom
from mrs.families.spec import ShortConvolution
from mrs.kernels.convolution import causal_convolution
from mrs.model.rope import RopeTable
from mrs.model.segments import Segment
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

    def __call__(self, x: Tensor, segments: list[Segment], layer: int) -> Tensor:
        gate_in, gate_out, inner = self._in(x).chunk(3, dim=-1)
        inner = gate_in * inner
        mixed = torch.empty_like(inner)
        for segment in segments:
            rows = segment.rows
            cache = cast(RecurrentCache, segment.memory.layers[layer])
            (state,) = cache.tensors
            mixed[rows] = causal_convolution(inner[rows], state, self._weight, self._bias)
            cache.advance(rows.stop - rows.start)
        return self._out(gate_out * mixed)

    def new_cache(self, room: CacheRoom, device: torch.device) -> RecurrentCache:
        shape = (self._part.channels, self._part.kernel_tokens - 1)
        return RecurrentCache(shape, dtypes=(room.dtype,), device=device)
