"""Projectors that make one row of each square of patches."""

from __future__ import annotations

from torch import Tensor

from mrs.families.vision.gemma3 import PooledProjector
from mrs.families.vision.idefics3 import FoldedProjector
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


class FoldedProjectorPart:
    """The patches of each square side by side, row by row, times a matrix."""

    def __init__(self, projector: FoldedProjector, weights: ModelWeights) -> None:
        self._side, self._fold = projector.side, projector.fold
        self._project = weights.linear("projector")

    def __call__(self, seen: Tensor, shape: ImageShape) -> Tensor:
        """seen (V * side * side, tower's width) to (rows, hidden)."""
        squares, fold = self._side // self._fold, self._fold
        cut = seen.view(-1, squares, fold, squares, fold, seen.shape[-1]).transpose(2, 3)
        return self._project(cut.reshape(-1, fold * fold * seen.shape[-1]))
