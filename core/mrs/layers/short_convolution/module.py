"""A gated short convolution: the token mixer of LFM 2's convolution layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.causal_convolution import causal_convolution
from mrs.layers.rope.module import RopeTable
from mrs.layers.short_convolution.spec import ShortConvolution
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class ShortConvolutionModule:
    """out(gate_out * convolution(gate_in * inner)), where in(x) = gate_in, gate_out, inner."""

    def __init__(
        self, config: ShortConvolution, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._config = config
        self._in, self._out = weights.linear("mixer.in"), weights.linear("mixer.out")
        self._weight = weights.vector("mixer.conv.weight")
        self._bias = weights.optional_vector("mixer.conv.bias")

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); updates the states of the sequences."""
        gate_in, gate_out, inner = self._in(x).chunk(3, dim=-1)
        inner = gate_in * inner
        out = torch.empty_like(inner)
        for (rows, _), each in zip(batch.queries, cache, strict=True):
            (state,) = each.tensors
            out[rows] = causal_convolution(inner[rows], state, self._weight, self._bias)
        return self._out(gate_out * out)

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        shape = (self._config.channels, self._config.kernel_tokens - 1)
        builder.add(lambda: RecurrentStateCache(shape, device=device))
