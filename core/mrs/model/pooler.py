"""From the pooled hidden state of a text to its vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.pooler import DenseActivation, Pooler
from mrs.model.linear import Linear
from mrs.model.model_weights import ModelWeights, NormModule

_ACTIVATIONS: dict[DenseActivation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}
_Layer = tuple[Linear, Callable[[Tensor], Tensor], NormModule | None]


class PoolerModule:
    """The dense layers of a pooler, in float32."""

    def __init__(self, config: Pooler, weights: ModelWeights, device: torch.device) -> None:
        self._device = device
        self._is_difference = config.is_difference
        layers = [
            (
                weights.linear(f"dense.{index}"),
                _ACTIVATIONS[dense.activation],
                weights.norm(f"dense.{index}.norm", dense.norm) if dense.norm else None,
            )
            for index, dense in enumerate(config.dense)
        ]
        self._of_states = layers[: config.states_dense]
        self._layers = layers[config.states_dense :]

    def states(self, hidden: Tensor) -> Tensor:
        """The hidden states (N, hidden) of tokens to those that are pooled (N, size)."""
        return _transformed(hidden.float(), self._of_states) if self._of_states else hidden

    def __call__(self, pooled: Tensor) -> Tensor:
        """The pooled state (hidden,) to the vector (size,), both in float64 on the CPU."""
        if self._layers:
            x = pooled.float()[None].to(self._device)
            pooled = _transformed(x, self._layers)[0].cpu().double()
        return pooled[:1] - pooled[1:] if self._is_difference else pooled


def _transformed(x: Tensor, layers: Sequence[_Layer]) -> Tensor:
    """x (N, columns) after some dense layers, in float32."""
    for linear, activation, norm in layers:
        x = activation(linear(x))
        x = x if norm is None else norm(x)
    return x
