"""The first Mamba: the token mixer of layers with a selective state space."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.causal_convolution import causal_convolution
from mrs.kernels.nonlinearities import gated, softplus
from mrs.kernels.selective_scan import SelectedInput, selective_scan
from mrs.layers.mamba.spec import Mamba
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights, NormModule


class MambaModule:
    """Convolves its input, updates and reads a recurrent state, and gates the result."""

    def __init__(self, config: Mamba, weights: ModelWeights, rope: RopeTable | None) -> None:
        self._config = config
        self._in, self._out = weights.linear("mixer.in"), weights.linear("mixer.out")
        self._select, self._step = weights.linear("mixer.x"), weights.linear("mixer.step")
        self._convolution = weights.vector("mixer.conv.weight")
        self._convolution_bias = weights.optional_vector("mixer.conv.bias")
        self._step_bias = weights.vector("mixer.step_bias")
        self._decay, self._skip = weights.vector("mixer.decay"), weights.vector("mixer.skip")
        self._sum_of_ranks = weights.sum_of_ranks
        self._norms: list[NormModule] = []
        if config.norm is not None:
            self._norms = [weights.norm(f"mixer.{p}_norm", config.norm) for p in ("step", "b", "c")]

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); updates the states of the sequences."""
        return self._out(self._mixed(x, batch, cache).to(x.dtype))

    def _mixed(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        """x (N, hidden) to what is projected back, (N, C) in float32."""
        inner, gate = self._in(x).chunk(2, dim=-1)
        values = torch.empty(inner.shape, device=x.device)
        for (rows, _), each in zip(batch.queries, cache, strict=True):
            recent, _ = each.tensors
            values[rows] = causal_convolution(
                inner[rows], recent, self._convolution, self._convolution_bias, silu=True
            )
        out = self._scan(values, self._selected(values.to(x.dtype)), batch, cache)
        del values
        return gated("silu", gate.float().contiguous(), out)

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        config = self._config
        recent = (config.channels, config.kernel_tokens - 1)
        state = (config.channels, config.state_dim)
        builder.add(lambda: RecurrentStateCache(recent, state, device=device))

    def _selected(self, values: Tensor) -> list[Tensor]:
        """values (N, C) to the values for steps (N, step_rank), and b and c (N, state_dim)."""
        selected = self._select(values)
        if self._sum_of_ranks is not None:
            selected = self._sum_of_ranks(selected)
        split = torch.split(selected, list(self._config.selected), dim=-1)
        parts = [part.contiguous() for part in split]
        if self._norms:
            parts = [norm(part) for norm, part in zip(self._norms, parts, strict=True)]
        return parts

    def _scan(
        self,
        values: Tensor,
        selected: Sequence[Tensor],
        batch: ForwardBatch,
        cache: Sequence[RecurrentStateCache],
    ) -> Tensor:
        """values (N, C), and what was selected by them, to (N, C)."""
        into_step, *weights = selected
        step = softplus(self._step(into_step).float() + self._step_bias)
        b, c = (each.float() for each in weights)
        out = torch.empty_like(values)
        for (rows, _), each in zip(batch.queries, cache, strict=True):
            _, state = each.tensors
            inputs = SelectedInput(values[rows], step[rows], b[rows], c[rows])
            out[rows] = selective_scan(inputs, self._decay, self._skip, state)
        return out
