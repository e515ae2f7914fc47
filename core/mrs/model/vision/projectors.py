"""From what a tower saw to rows as wide as the decoder's."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.layers import Mlp
from mrs.architecture.vision.shared_projectors import LinearProjector, MlpProjector
from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.gemma3 import PooledProjector
from mrs.families.vision.idefics3 import FoldedProjector
from mrs.families.vision.llava_next import TilesProjector
from mrs.families.vision.phi3_v import CropsProjector
from mrs.model.mlp import MlpModule
from mrs.model.weights import ModelWeights


class MlpProjectorPart:
    """Two layers, each row on its own."""

    def __init__(self, projector: MlpProjector, weights: ModelWeights) -> None:
        mlp = Mlp(0, projector.activation, gated=False, bias=projector.bias)
        self._mlp = MlpModule(mlp, weights, "projector")

    def __call__(self, seen: Tensor, shape: ImageShape) -> Tensor:
        """seen (rows, tower's width) to (rows, hidden)."""
        return self._mlp(seen)


class LinearProjectorPart:
    """One product, each row on its own."""

    def __init__(self, projector: LinearProjector, weights: ModelWeights) -> None:
        self._map = weights.linear("projector")

    def __call__(self, seen: Tensor, shape: ImageShape) -> Tensor:
        """seen (rows, tower's width) to (rows, hidden)."""
        return self._map(seen)


class TilesProjectorPart:
    """Puts the tiles together, leaves out what shows nothing, and ends each row of patches."""

    def __init__(self, projector: TilesProjector, weights: ModelWeights) -> None:
        self._mlp = MlpProjectorPart(projector.mlp, weights)
        self._newline = weights.vector("newline")

    def __call__(self, seen: Tensor, shape: ImageShape) -> Tensor:
        rows, columns, side, above, left = shape.grid
        features = self._mlp(seen, shape).view(1 + rows * columns, side * side, -1)
        tiles = features[1:].view(rows, columns, side, side, -1).transpose(1, 2)
        picture = tiles.reshape(rows * side, columns * side, -1)
        picture = picture[above : rows * side - above, left : columns * side - left]
        newline = self._newline.to(picture.dtype).expand(len(picture), 1, -1)
        return torch.cat((features[0], torch.cat((picture, newline), dim=1).flatten(0, 1)))


class CropsProjectorPart:
    """Puts the crops together and, after a vector in between, the whole picture."""

    def __init__(self, projector: CropsProjector, weights: ModelWeights) -> None:
        self._mlp = MlpProjectorPart(projector.mlp, weights)
        self._newline, self._between = weights.vector("newline"), weights.vector("between")

    def __call__(self, seen: Tensor, shape: ImageShape) -> Tensor:
        rows, columns, side = shape.grid
        views = seen.view(1 + rows * columns, (2 * side) ** 2, -1)
        crops, whole = self._arranged(views[1:], rows, columns), self._arranged(views[:1], 1, 1)
        between = self._between[None].to(crops.dtype)
        return self._mlp(torch.cat((crops, between, whole)), shape)

    def _arranged(self, views: Tensor, rows: int, columns: int) -> Tensor:
        """Views (V, patches, width), a square of four patches each a row 4 * width wide."""
        side = int(views.shape[1] ** 0.5) // 2
        squares = views.view(rows, columns, side, 2, side, 2, -1)
        table = squares.permute(0, 2, 1, 4, 3, 5, 6).reshape(rows * side, columns * side, -1)
        newline = self._newline.to(table.dtype).expand(len(table), 1, -1)
        return torch.cat((table, newline), dim=1).flatten(0, 1)


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
