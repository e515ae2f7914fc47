"""Operations that read and change states, as torch computes them: one sequence after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.graph.operations import Convolve, DeltaRule, StateSpace
from mrs.kernels.causal_convolution import causal_convolution
from mrs.kernels.channel_delta_rule import channel_delta_rule
from mrs.kernels.delta_rule import gated_delta_rule
from mrs.kernels.selective_scan import SelectedInput, selective_scan
from mrs.kernels.state_space import StateSpaceInput, scan
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights

States = Sequence[RecurrentStateCache]


class StateStep(Protocol):
    """Computes an operation: from what it reads, (N, width) each, to what it writes."""

    def __call__(
        self, inputs: Sequence[Tensor], batch: ForwardBatch, states: States
    ) -> Sequence[Tensor]: ...


class Convolution:
    """Convolves values, which are overwritten if there are several sequences."""

    def __init__(self, operation: Convolve, widths: Sequence[int], weights: ModelWeights) -> None:
        channels = sum(widths[value] for value in operation.values_)
        rows = slice(operation.first_row, operation.first_row + channels)
        bias = weights.vector(f"{operation.slot}.bias")[rows] if operation.bias else None
        self._weight = weights.vector(f"{operation.slot}.weight")[rows]
        self._bias, self._silu = bias, operation.silu
        self._channels = slice(operation.first_channel, operation.first_channel + channels)

    def __call__(
        self, inputs: Sequence[Tensor], batch: ForwardBatch, states: States
    ) -> Sequence[Tensor]:
        if len(batch.queries) == 1:
            return self._of_one(inputs, states[0])
        for (rows, _), state in zip(batch.queries, states, strict=True):
            self._overwrite([x[rows] for x in inputs], state)
        return inputs

    def _overwrite(self, parts: Sequence[Tensor], state: RecurrentStateCache) -> None:
        for part, out in zip(parts, self._of_one(parts, state), strict=True):
            part.copy_(out)

    def _of_one(self, parts: Sequence[Tensor], state: RecurrentStateCache) -> list[Tensor]:
        recent = state.tensors[0][self._channels]
        return causal_convolution(parts, recent, self._weight, self._bias, silu=self._silu)


class DeltaRuleStep:
    """Queries, keys, values, logarithms of decays and strengths to what is read (N, H * Dv)."""

    def __init__(self, operation: DeltaRule) -> None:
        self._heads, self._key_heads = operation.heads, operation.key_heads
        self._tiled = operation.tiled

    def __call__(
        self, inputs: Sequence[Tensor], batch: ForwardBatch, states: States
    ) -> Sequence[Tensor]:
        return [_by_sequence(self._of_one, inputs, inputs[2], batch, states)]

    def _of_one(self, inputs: Sequence[Tensor], state: Tensor, first: int) -> Tensor:
        q, k, v, log_decay, beta = inputs
        q, k = (_heads(x, self._key_heads) for x in (q, k))
        v = _heads(v, self._heads)
        if log_decay.shape[1] > self._heads:
            return channel_delta_rule(q, k, v, _heads(log_decay, self._heads), beta, state)
        return gated_delta_rule(q, k, v, log_decay, beta, state, tiled=self._tiled)


class StateSpaceStep:
    """x, input weights, output weights and times to what is read (N, width of x)."""

    def __init__(self, operation: StateSpace, weights: ModelWeights) -> None:
        self._heads, self._groups = operation.heads, operation.groups
        self._decay, self._skip = weights.vector("mixer.decay"), weights.vector("mixer.skip")

    def __call__(
        self, inputs: Sequence[Tensor], batch: ForwardBatch, states: States
    ) -> Sequence[Tensor]:
        return [_by_sequence(self._of_one, inputs, inputs[0], batch, states)]

    def _of_one(self, inputs: Sequence[Tensor], state: Tensor, first: int) -> Tensor:
        x, b, c, times = (each.float() for each in inputs)
        if self._decay.ndim > 1:
            return selective_scan(SelectedInput(x, times, b, c), self._decay, self._skip, state)
        x, b, c = _heads(x, self._heads), _heads(b, self._groups), _heads(c, self._groups)
        return scan(StateSpaceInput(x, b, c, times), self._decay, self._skip, state, first)


def _by_sequence(
    of_one: Callable[[Sequence[Tensor], Tensor, int], Tensor],
    inputs: Sequence[Tensor],
    like: Tensor,
    batch: ForwardBatch,
    states: States,
) -> Tensor:
    """What `of_one` makes of the rows of each sequence, its last state and its first position.

    As rows `like` those of a tensor (N, width).
    """

    def result(rows: slice, context: int, state: RecurrentStateCache) -> Tensor:
        first = context - (rows.stop - rows.start)
        return of_one([x[rows] for x in inputs], state.tensors[-1], first).flatten(1)

    if len(batch.queries) == 1:
        return result(*batch.queries[0], states[0])
    out = torch.empty_like(like)
    for (rows, context), state in zip(batch.queries, states, strict=True):
        out[rows] = result(rows, context, state)  # without a name, which would keep it
    return out


def _heads(x: Tensor, heads: int) -> Tensor:
    """x (T, H * D) as (T, H, D)."""
    return x.view(x.shape[0], heads, -1)
