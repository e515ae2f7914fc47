"""The projection of pixels of Gemma 4 12B, in place of a vision tower."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.gemma4_unified import NORM, SquaresTower
from mrs.media.pixels import split_patches
from mrs.model.model_weights import ModelWeights


class SquaresTowerModule:
    """Projects squares of pixels, with learned embeddings of their columns and rows."""

    def __init__(self, tower: SquaresTower, weights: ModelWeights) -> None:
        self._square, self._channels_first = tower.square, tower.channels_first
        self._pre_norm = weights.norm("pre_norm", NORM)
        self._weight = weights.vector("patches.weight")
        self._bias = weights.vector("patches.bias")
        self._norm = weights.norm("norm", NORM)
        positions = weights.vector("positions")
        self._by_column, self._by_row = positions.unbind(0 if tower.channels_first else 1)
        self._post_norm = weights.norm("post_norm", NORM)

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (3, height, width) to (squares, hidden), row by row."""
        rows, columns = shape.grid
        patches = split_patches(pixels, self._square, channels_first=self._channels_first)
        x = self._pre_norm(patches)
        x = F.linear(x.to(self._weight.dtype), self._weight).to(pixels.dtype).add_(self._bias)
        x = self._norm(x).view(rows, columns, -1)
        x = x.add_(self._by_column[:columns]).add_(self._by_row[:rows, None])
        return self._post_norm(x.flatten(0, 1))
