"""A gated delta net as the part of a layer that mixes tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.layers import GatedDeltaNet
from mrs.cache.cache_space import CacheBuilder
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.causal_convolution import causal_convolution
from mrs.kernels.delta_rule import gated_delta_rule, unit_length
from mrs.model.batch import ForwardBatch
from mrs.model.rope import RopeTable
from mrs.model.weights import ModelWeights


class DeltaNetPart:
    """Convolves queries, keys and values, then reads from and corrects a state for each token."""

    def __init__(self, part: GatedDeltaNet, weights: ModelWeights, rope: RopeTable | None) -> None:
        self._part = part
        self._q, self._k = weights.linear("mixer.q"), weights.linear("mixer.k")
        self._v, self._z = weights.linear("mixer.v"), weights.linear("mixer.z")
        self._beta = weights.vector("mixer.beta.weight")
        self._step = weights.vector("mixer.step.weight")
        self._step_bias = weights.vector("mixer.step_bias")
        self._decay = weights.vector("mixer.decay")
        self._convolution = weights.vector("mixer.conv.weight")
        self._head_norm = weights.norm("mixer.head_norm", part.norm)
        self._out = weights.linear("mixer.out")

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        part = self._part
        inputs = torch.cat((self._q(x), self._k(x), self._v(x)), dim=-1)
        wide = x.float()
        beta = torch.sigmoid(wide @ self._beta.T)  # (N, VH)
        log_decay = self._decay * F.softplus(wide @ self._step.T + self._step_bias)
        mixed = wide.new_empty(x.shape[0], part.value_heads, part.value_dim)
        for (rows, _), each in zip(batch.queries, cache, strict=True):
            mixed[rows] = self._mix(inputs[rows], beta[rows], log_decay[rows], each)
        gate = F.silu(self._z(x).float()).view(mixed.shape)
        return self._out((self._head_norm(mixed) * gate).flatten(1).to(x.dtype))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        part, dtype = self._part, builder.config.dtype
        recent = (part.channels, part.kernel_tokens - 1)
        state = (part.value_heads, part.key_dim, part.value_dim)
        dtypes = (dtype, torch.float32)
        builder.add(lambda: RecurrentStateCache(recent, state, dtypes=dtypes, device=device))

    def _mix(
        self, inputs: Tensor, beta: Tensor, log_decay: Tensor, cache: RecurrentStateCache
    ) -> Tensor:
        """One sequence's new tokens (T, channels) to (T, VH, Dv)."""
        part = self._part
        recent, state = cache.tensors
        inputs = F.silu(causal_convolution(inputs, recent, self._convolution, None))
        keys = part.key_heads * part.key_dim
        q = self._shared(inputs[:, :keys]) * part.key_dim**-0.5
        k = self._shared(inputs[:, keys : 2 * keys])
        v = inputs[:, 2 * keys :].reshape(-1, part.value_heads, part.value_dim)
        return gated_delta_rule(q, k, v, log_decay, beta, state)

    def _shared(self, x: Tensor) -> Tensor:
        """(T, KH * D) to (T, VH, D) of length one: each key head serves several in a row."""
        part = self._part
        heads = unit_length(x.reshape(-1, part.key_heads, part.key_dim))
        return heads.repeat_interleave(part.value_heads // part.key_heads, dim=1)
