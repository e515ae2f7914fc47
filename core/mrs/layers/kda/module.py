"""Kimi Delta Attention: the token mixer of Kimi Linear's layers with linear attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.kernels.causal_convolution import causal_convolution
from mrs.kernels.channel_delta_rule import channel_delta_rule
from mrs.kernels.delta_rule import l2_normalize
from mrs.kernels.dense_products import linear
from mrs.kernels.nonlinearities import activated, gated, softplus
from mrs.layers.kda.spec import KimiDeltaAttention
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class KimiDeltaAttentionModule:
    """Convolves queries, keys and values, then updates and reads a recurrent state."""

    def __init__(
        self, config: KimiDeltaAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._config = config
        self._projections = [weights.linear(f"mixer.{part}") for part in "qkv"]
        self._convolutions = [weights.vector(f"mixer.conv_{part}.weight") for part in "qkv"]
        self._decay_in = weights.vector("mixer.decay_in.weight")
        self._decay_out = weights.vector("mixer.decay_out.weight")
        self._step_bias, self._decay = (
            weights.vector("mixer.step_bias"),
            weights.vector("mixer.decay"),
        )
        self._beta = weights.vector("mixer.beta.weight")
        self._gate_in, self._gate_out = (weights.linear(f"mixer.gate_{n}") for n in ("in", "out"))
        self._head_norm = weights.norm("mixer.head_norm", config.norm)
        self._out = weights.linear("mixer.out")

    def __call__(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); updates the states of the sequences."""
        out = self._head_norm(self._attend(x, batch, cache)).flatten(1)
        gate = self._gate_out(self._gate_in(x)).float()
        return self._out(gated("sigmoid", gate, out).to(x.dtype))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        config = self._config
        recent = (3 * config.values, config.kernel_tokens - 1)
        state = (config.heads, config.head_dim, config.head_dim)
        builder.add(lambda: RecurrentStateCache(recent, state, device=device))

    def _attend(
        self, x: Tensor, batch: ForwardBatch, cache: Sequence[RecurrentStateCache]
    ) -> Tensor:
        """x (N, hidden) to the output of each head (N, H, D) in float32."""
        config = self._config
        qkv = [project(x) for project in self._projections]
        beta = activated("sigmoid", linear(x, self._beta))  # (N, H)
        log_decay = self._log_decay(x)
        out = beta.new_empty(x.shape[0], config.heads, config.head_dim)
        for (rows, _), each in zip(batch.queries, cache, strict=True):
            recent, state = each.tensors
            q, k, v = self._convolved([part[rows] for part in qkv], recent)
            out[rows] = channel_delta_rule(q, k, v, log_decay[rows], beta[rows], state)
        return out

    def _log_decay(self, x: Tensor) -> Tensor:
        """x (N, hidden) to the logarithms of the decays (N, H, D)."""
        config = self._config
        steps = softplus(linear(linear(x, self._decay_in), self._decay_out, self._step_bias))
        return steps.view(-1, config.heads, config.head_dim).mul_(self._decay[:, None])

    def _convolved(self, parts: Sequence[Tensor], recent: Tensor) -> list[Tensor]:
        """One sequence's queries, keys and values (T, H * D) to (T, H, D) each.

        Queries and keys get the length 1, and queries are scaled.
        """
        outputs = []
        for part, state, weight in zip(parts, recent.chunk(3), self._convolutions, strict=True):
            out = causal_convolution(part, state, weight, None, silu=True)
            outputs.append(out.view(-1, self._config.heads, self._config.head_dim))
        q, k, v = outputs
        return [l2_normalize(q, scale=self._config.head_dim**-0.5), l2_normalize(k), v]
