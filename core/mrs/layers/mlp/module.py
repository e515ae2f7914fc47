"""The feed-forward block of a layer (MLP)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from mrs.kernels.nonlinearities import activated, cut_off, cut_off_parts, gated
from mrs.kernels.xielu import XieluParameters, xielu
from mrs.layers.mlp.spec import Mlp
from mrs.model.linear import Linear
from mrs.model.model_weights import ModelWeights


class MlpModule:
    """down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x))).

    Its weights are named `slot.gate`, `slot.up` and `slot.down`.
    """

    def __init__(self, config: Mlp, weights: ModelWeights, slot: str = "ffn") -> None:
        self._activation, self._clamp = config.activation, config.clamp
        self._cutoff, self._sum_of_ranks = config.cutoff, weights.sum_of_ranks
        self._gate_scale, self._out_scale = config.gate_scale, config.out_scale
        self._gate = weights.linear(f"{slot}.gate") if config.gated else None
        self._up, self._down = weights.linear(f"{slot}.up"), weights.linear(f"{slot}.down")
        self._xielu = None
        if config.xielu_values:
            device = weights.matrix(f"{slot}.up").device
            self._xielu = XieluParameters(
                *torch.tensor(config.xielu_values, device=device)[:, None]
            )
        elif config.activation == "xielu":
            numbers = (weights.vector(f"{slot}.{name}") for name in XieluParameters._fields)
            self._xielu = XieluParameters(*numbers)

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        out = self._down(self._activated(x))  # no name holds what is activated
        return out if self._out_scale == 1.0 else out.mul_(self._out_scale)

    def _activated(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, intermediate)."""
        if self._xielu is not None:
            return xielu(self._up(x), self._xielu)
        if self._gate is None:
            return activated(self._activation, self._up(x))
        return gated(self._activation, self._scaled_gate(self._gate, x), self._up(x), self._clamp)

    def _scaled_gate(self, linear: Linear, x: Tensor) -> Tensor:
        gate = linear(x)
        if self._cutoff is not None:
            ranks = self._sum_of_ranks
            cut = cut_off if ranks is None else partial(cut_off_parts, sum_parts=ranks)
            gate = cut(gate, self._cutoff)
        return gate if self._gate_scale == 1.0 else gate.mul_(self._gate_scale)
