"""A low-rank residual in parallel with a layer's mixer (LAuReL)."""

from __future__ import annotations

from torch import Tensor

from mrs.layers.laurel.spec import Laurel
from mrs.model.model_weights import ModelWeights


class LaurelModule:
    """y + norm(right(left(y)))."""

    def __init__(self, config: Laurel, weights: ModelWeights) -> None:
        self._left, self._right = weights.linear("laurel.left"), weights.linear("laurel.right")
        self._norm = weights.norm("laurel.norm", config.norm)

    def __call__(self, y: Tensor) -> Tensor:
        """y (N, hidden) to (N, hidden)."""
        return y + self._norm(self._right(self._left(y)))
