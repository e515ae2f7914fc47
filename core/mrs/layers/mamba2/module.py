"""Mamba 2: the token mixer of layers with a selective state space."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.causal_convolution import causal_convolution
from mrs.kernels.nonlinearities import gated, softplus
from mrs.kernels.norms import rms_norm, rms_norm_of_parts
from mrs.kernels.state_space import StateSpaceInput, scan
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class Mamba2Module:
    """Convolves its input, updates and reads a recurrent state, gates and normalizes the result."""

    def __init__(self, config: Mamba2, weights: ModelWeights, rope: RopeTable | None) -> None:
        self._config = config
        self._in, self._out = weights.linear("mixer.in"), weights.linear("mixer.out")
        self._convolution = weights.vector("mixer.conv.weight")
        self._convolution_bias = weights.optional_vector("mixer.conv.bias")
        self._step_bias = weights.vector("mixer.step_bias")
        self._decay, self._skip = weights.vector("mixer.decay"), weights.vector("mixer.skip")
        self._norm = weights.optional_vector("mixer.head_norm.weight")
        self._sum_of_ranks = weights.sum_of_ranks if config.shares_group else None

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); updates the states of the sequences."""
        config = self._config
        sizes = [config.values, config.channels, config.heads]
        projected = self._in(x)
        parts = torch.split(projected, list(config.parts), dim=-1) if config.multipliers else ()
        for part, factor in zip(parts, config.multipliers, strict=True):
            part.mul_(factor)
        gate, inner, step = torch.split(projected, sizes, dim=-1)
        step = softplus(step.float() + self._step_bias)
        step = step.clamp_(config.least_step, config.most_step)
        out = torch.empty(x.shape[0], config.values, device=x.device)
        for (rows, context), each in zip(batch.queries, cache, strict=True):
            first = context - (rows.stop - rows.start)
            out[rows] = self._mix(inner[rows], step[rows], each, first)
        if config.norm_before_gate:
            out = self._normed(out)
        out = gated("silu", gate.float().contiguous(), out)
        if not config.norm_before_gate:
            out = self._normed(out)
        return self._out(out.to(x.dtype))

    def _normed(self, out: Tensor) -> Tensor:
        """out (N, values) with each group normalized, if there is a norm."""
        if self._config.norm is None or self._norm is None:
            return out
        if self._sum_of_ranks is not None:
            return rms_norm_of_parts(out, self._norm, self._config.norm.eps, self._sum_of_ranks)
        groups = out.view(out.shape[0], self._config.groups, -1)
        ones = out.new_ones(groups.shape[-1])
        return rms_norm(groups, ones, self._config.norm.eps).flatten(1).mul_(self._norm)

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        config = self._config
        recent = (config.channels, config.kernel_tokens - 1)
        state = (config.heads, config.head_dim, config.state_dim)
        builder.add(lambda: RecurrentStateCache(recent, state, device=device))

    def _mix(self, inner: Tensor, step: Tensor, cache: RecurrentStateCache, first: int) -> Tensor:
        """One sequence's new tokens (T, channels), from position `first` on, to (T, values)."""
        config = self._config
        recent, state = cache.tensors
        inner = causal_convolution(
            inner, recent, self._convolution, self._convolution_bias, silu=True
        )
        weights = config.groups * config.state_dim
        x, b, c = torch.split(inner, [config.values, weights, weights], dim=-1)
        x = x.reshape(-1, config.heads, config.head_dim)
        b, c = (part.reshape(-1, config.groups, config.state_dim) for part in (b, c))
        inputs = StateSpaceInput(x, b, c, step)
        return scan(inputs, self._decay, self._skip, state, first).flatten(1)
