"""Projectors that make one row of each square of patches."""

from __future__ import annotations

from torch import Tensor

from mrs.families.vision.gemma3 import PooledProjector
from mrs.families.vision.spec import ImageShape
from mrs.model.weights import ModelWeights


class PooledProjectorPart:
    """The mean of each square, normalized, times a matrix."""

    def __init__(self, projector: PooledProjector, weights: ModelWeights) -> None:
        self._side, self._pool = projector.side, projector.pool
        self._norm = weights.norm("projector.norm", projector.norm)
        self._project = weights.linear("projector")

    def __call__(self, seen: Tensor, shape: ImageShape) -> Tensor:
        """seen (V * side * side, tower's width) to (rows, hidden)."""
        squares = self._side // self._pool
        means = seen.view(-1, squares, self._pool, squares, self._pool, seen.shape[-1]).mean((2, 4))
        return self._project(self._norm(means.flatten(0, 2)))
