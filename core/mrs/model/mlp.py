"""The part of a layer that transforms each token on its own."""

from __future__ import annotations

from torch import Tensor

from mrs.architecture.layers import Mlp
from mrs.kernels.nonlinearities import ACTIVATIONS, gated
from mrs.model.weights import ModelWeights


class MlpModule:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))); its weights are `slot`'s."""

    def __init__(self, part: Mlp, weights: ModelWeights, slot: str = "ffn") -> None:
        self._activation, self._clamp = part.activation, part.clamp
        self._gate = weights.linear(f"{slot}.gate") if part.gated else None
        self._up, self._down = weights.linear(f"{slot}.up"), weights.linear(f"{slot}.down")

    def __call__(self, x: Tensor) -> Tensor:
        if self._gate is None:
            return self._down(ACTIVATIONS[self._activation](self._up(x)))
        return self._down(gated(self._activation, self._gate(x), self._up(x), self._clamp))
