"""Projectors: from a tower's features to rows of the decoder's hidden size."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.vision.shared_projectors import (
    AdapterProjector,
    CropsProjector,
    FoldedMlpProjector,
    MlpProjector,
)
from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.gemma3 import PooledProjector
from mrs.families.vision.idefics3 import FoldedProjector
from mrs.families.vision.llava_next import TilesProjector
from mrs.families.vision.mllama import LinearProjector
from mrs.kernels.nonlinearities import activated
from mrs.layers.mlp.module import MlpModule
from mrs.layers.mlp.spec import Mlp
from mrs.model.model_weights import ModelWeights, NormModule


class MlpProjectorModule:
    """An MLP of two layers, applied to each row."""

    def __init__(self, projector: MlpProjector, weights: ModelWeights) -> None:
        mlp = Mlp(0, projector.activation, gated=False, bias=projector.bias)
        self._mlp = MlpModule(mlp, weights, "projector")

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (rows, tower's width) to (rows, hidden)."""
        return self._mlp(features)


class LinearProjectorModule:
    """One linear layer, applied to each row."""

    def __init__(self, projector: LinearProjector, weights: ModelWeights) -> None:
        self._map = weights.linear("projector")

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (rows, tower's width) to (rows, hidden)."""
        return self._map(features)


class TilesProjectorModule:
    """LLaVA-NeXT: the whole image, then its tiles joined without their padding.

    Each row of joined patches ends with a newline vector.
    """

    def __init__(self, projector: TilesProjector, weights: ModelWeights) -> None:
        self._mlp = MlpProjectorModule(projector.mlp, weights)
        self._newline = weights.vector("newline")

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features ((1 + tiles) * side * side, tower's width) to (rows, hidden).

        The first view is the whole image; `above` and `left` are the rows and columns of padding.
        """
        rows, columns, side, above, left = shape.grid
        views = self._mlp(features, shape).view(1 + rows * columns, side * side, -1)
        tiles = views[1:].view(rows, columns, side, side, -1).transpose(1, 2)
        image = tiles.reshape(rows * side, columns * side, -1)
        image = image[above : rows * side - above, left : columns * side - left]
        newline = self._newline.to(image.dtype).expand(len(image), 1, -1)
        return torch.cat((views[0], torch.cat((image, newline), dim=1).flatten(0, 1)))


class CropsProjectorModule:
    """Phi 3 and 4: the joined crops without padding, a separator, then the whole image."""

    def __init__(self, projector: CropsProjector, weights: ModelWeights) -> None:
        self._is_mean = projector.is_mean
        self._mlp = MlpProjectorModule(projector.mlp, weights)
        self._newline, self._separator = weights.vector("newline"), weights.vector("between")

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features ((1 + crops) * patches, tower's width) to (rows, hidden).

        The first view is the whole image.
        """
        rows, columns, side, height, width = shape.grid
        views = features.view(1 + rows * columns, (2 * side) ** 2, -1)
        crops = self._lines(self._joined(views[1:], rows, columns)[:height, :width])
        whole = self._lines(self._joined(views[:1], 1, 1))
        separator = self._separator[None].to(crops.dtype)
        return self._mlp(torch.cat((crops, separator, whole)), shape)

    def _joined(self, views: Tensor, rows: int, columns: int) -> Tensor:
        """A grid of views (V, patches, width) to a table (rows * side, columns * side, size).

        Each square of 2 x 2 patches becomes one entry.
        """
        side = int(views.shape[1] ** 0.5) // 2
        squares = views.view(rows, columns, side, 2, side, 2, -1)
        if self._is_mean:
            squares = squares.mean((3, 5), keepdim=True)
        return squares.permute(0, 2, 1, 4, 3, 5, 6).reshape(rows * side, columns * side, -1)

    def _lines(self, table: Tensor) -> Tensor:
        """A table (height, width, size) to (N, size), with a newline vector after each line."""
        newline = self._newline.to(table.dtype).expand(len(table), 1, -1)
        return torch.cat((table, newline), dim=1).flatten(0, 1)


class PooledProjectorModule:
    """Gemma 3: the mean of each square of patches, a norm and a linear layer."""

    def __init__(self, projector: PooledProjector, weights: ModelWeights) -> None:
        self._side, self._pool = projector.side, projector.pool
        self._norm = weights.norm("projector.norm", projector.norm)
        self._project = weights.linear("projector")

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (V * side * side, tower's width) to (rows, hidden)."""
        squares = self._side // self._pool
        means = features.view(
            -1, squares, self._pool, squares, self._pool, features.shape[-1]
        ).mean((2, 4))
        return self._project(self._norm(means.flatten(0, 2)))


class FoldedProjectorModule:
    """Idefics 3: the concatenated patches of each square (pixel shuffle) and a linear layer."""

    def __init__(self, projector: FoldedProjector, weights: ModelWeights) -> None:
        self._side, self._fold = projector.side, projector.fold
        self._project = weights.linear("projector")

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (V * side * side, tower's width) to (rows, hidden)."""
        squares, fold = self._side // self._fold, self._fold
        cut = features.view(-1, squares, fold, squares, fold, features.shape[-1]).transpose(2, 3)
        return self._project(cut.reshape(-1, fold * fold * features.shape[-1]))


class FoldedMlpProjectorModule:
    """The concatenated patches of each square of each view (pixel shuffle), a norm and an MLP."""

    def __init__(self, projector: FoldedMlpProjector, weights: ModelWeights) -> None:
        self._fold, self._shrunk = projector.fold, projector.shrunk
        self._channels_first = projector.channels_first
        self._norm = weights.norm("projector.norm", projector.norm) if projector.norm else None
        mlp = Mlp(0, projector.activation, gated=False, bias=projector.bias)
        self._mlp = MlpModule(mlp, weights, "projector")

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (patches of all views, tower's width) to (rows, hidden)."""
        grids = [(rows // self._shrunk, columns // self._shrunk) for rows, columns in shape.views]
        parts = torch.split(features, [rows * columns for rows, columns in grids])
        views = zip(parts, grids, strict=True)
        x = torch.cat([self._folded(part, *grid) for part, grid in views])
        return self._mlp(x if self._norm is None else self._norm(x))

    def _folded(self, part: Tensor, rows: int, columns: int) -> Tensor:
        """One view, row by row, to (squares, fold * fold * width)."""
        fold, width = self._fold, part.shape[-1]
        cut = part.view(rows // fold, fold, columns // fold, fold, width).transpose(1, 2)
        if self._channels_first:
            cut = cut.movedim(-1, 2)
        return cut.reshape(-1, fold * fold * width)


class AdapterProjectorModule:
    """Folds patches to rows, then an MLP, an activation, a linear map and maybe a norm."""

    def __init__(self, projector: AdapterProjector, weights: ModelWeights) -> None:
        self._mlp = FoldedMlpProjectorModule(projector.mlp, weights)
        self._activation = projector.mlp.activation
        self._out = weights.linear("projector.out")
        self._norm = None if projector.norm is None else NormModule(projector.norm, None, None)

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (patches of all views, tower's width) to (rows, hidden)."""
        out = self._out(activated(self._activation, self._mlp(features, shape)))
        return out if self._norm is None else self._norm(out)
