"""From the pooled hidden state of a text to its vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.pooler import DenseActivation, Pooler
from mrs.model.model_weights import ModelWeights

_ACTIVATIONS: dict[DenseActivation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}


class PoolerModule:
    """The dense layers of a pooler, in float32."""

    def __init__(self, config: Pooler, weights: ModelWeights, device: torch.device) -> None:
        self._device = device
        self._is_difference = config.is_difference
        self._layers = [
            (
                weights.linear(f"dense.{index}"),
                _ACTIVATIONS[dense.activation],
                dense.norm and weights.norm(f"dense.{index}.norm", dense.norm),
            )
            for index, dense in enumerate(config.dense)
        ]

    def __call__(self, pooled: Tensor) -> Tensor:
        """The pooled state (hidden,) to the vector (size,), both in float64 on the CPU."""
        for linear, activation, norm in self._layers:
            x = activation(linear(pooled.float()[None].to(self._device)))
            pooled = (norm(x) if norm else x)[0].cpu().double()
        return pooled[:1] - pooled[1:] if self._is_difference else pooled
