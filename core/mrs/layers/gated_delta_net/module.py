"""A gated delta net: the token mixer of linear-attention layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.causal_convolution import causal_convolution
from mrs.kernels.delta_rule import gated_delta_rule, l2_normalize
from mrs.kernels.dense_products import linear
from mrs.kernels.nonlinearities import activated, gated, softplus
from mrs.layers.gated_delta_net.spec import GatedDeltaNet
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class DeltaNetModule:
    """Convolves queries, keys and values, then updates and reads a recurrent state."""

    def __init__(
        self, config: GatedDeltaNet, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._config = config
        self._q, self._k = weights.linear("mixer.q"), weights.linear("mixer.k")
        self._v, self._z = weights.linear("mixer.v"), weights.linear("mixer.z")
        self._beta = weights.vector("mixer.beta.weight")
        self._step = weights.vector("mixer.step.weight")
        self._step_bias = weights.vector("mixer.step_bias")
        self._decay = weights.vector("mixer.decay")
        self._convolution = weights.vector("mixer.conv.weight")
        self._head_norm = weights.norm("mixer.head_norm", config.norm)
        self._out = weights.linear("mixer.out")

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); updates the states of the sequences."""
        config = self._config
        qkv = torch.cat((self._q(x), self._k(x), self._v(x)), dim=-1)
        beta = activated("sigmoid", linear(x, self._beta)).mul_(config.beta_scale)  # (N, VH)
        log_decay = self._decay * softplus(linear(x, self._step, self._step_bias))
        out = beta.new_empty(x.shape[0], config.value_heads, config.value_dim)
        for (rows, _), each in zip(batch.queries, cache, strict=True):
            out[rows] = self._mix(qkv[rows], beta[rows], log_decay[rows], each)
        gate = self._z(x).float()
        return self._out(gated("silu", gate, self._head_norm(out).flatten(1)).to(x.dtype))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        config = self._config
        recent = (config.channels, config.kernel_tokens - 1)
        state = (config.value_heads, config.key_dim, config.value_dim)
        builder.add(lambda: RecurrentStateCache(recent, state, device=device))

    def _mix(
        self, qkv: Tensor, beta: Tensor, log_decay: Tensor, cache: RecurrentStateCache
    ) -> Tensor:
        """One sequence's new tokens (T, channels) to (T, VH, Dv)."""
        config = self._config
        recent, state = cache.tensors
        qkv = causal_convolution(qkv, recent, self._convolution, None, silu=True)
        keys = config.key_heads * config.key_dim
        q = self._normalized_heads(qkv[:, :keys], config.key_dim**-0.5)
        k = self._normalized_heads(qkv[:, keys : 2 * keys], 1.0)
        v = qkv[:, 2 * keys :].reshape(-1, config.value_heads, config.value_dim)
        return gated_delta_rule(q, k, v, log_decay, beta, state)

    def _normalized_heads(self, x: Tensor, length: float) -> Tensor:
        """(T, KH * D) to (T, VH, D) of a length: a key head repeats for VH / KH value heads.

        The repetitions of a head are adjacent, unless the heads are tiled.
        """
        config = self._config
        heads = l2_normalize(x.reshape(-1, config.key_heads, config.key_dim), scale=length)
        repeats = config.value_heads // config.key_heads
        if repeats == 1:
            return heads
        if config.tiled:
            return heads.repeat(1, repeats, 1)
        return heads.repeat_interleave(repeats, dim=1)
