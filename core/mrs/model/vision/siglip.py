"""SigLIP's vision tower."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mrs.architecture.vision.towers.siglip_tower import SiglipTower
from mrs.architecture.vision_spec import ImageShape
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding


class SiglipTowerModule:
    """Encodes views of an image, one at a time."""

    def __init__(self, tower: SiglipTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._positions = weights.vector("positions.weight")
        self._layers = build_layers(tower.layers, weights, "layer")
        self._norm = weights.norm("post_norm", tower.norm)

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (V, C, height, width) to (V * patches, hidden)."""
        return torch.cat([self._encode(view) for view in pixels])

    def _encode(self, view: Tensor) -> Tensor:
        """view (C, height, width) to (patches, hidden)."""
        x = self._patches(view)
        x = x + self._position_embeddings(view).to(x.dtype)
        for layer in self._layers:
            x = layer(x)
        return self._norm(x)

    def _position_embeddings(self, view: Tensor) -> Tensor:
        """The position embedding of each patch, (patches, hidden)."""
        if not self._tower.fractional_positions:
            return self._positions
        size = self._tower.patches.size
        rows, columns = view.shape[1] // size, view.shape[2] // size
        return self._positions[
            nearest_position_ids(rows, columns, self._tower.side).to(view.device)
        ]


@lru_cache(maxsize=4)
def nearest_position_ids(rows: int, columns: int, side: int, *, divides: bool = False) -> Tensor:
    """Which of the `side` x `side` learned positions each of rows x columns patches takes.

    In float32, i / count is a product with 1 / count unless it `divides`.
    """
    row_ids, column_ids = _nearest(rows, side, divides), _nearest(columns, side, divides)
    return (row_ids[:, None] * side + column_ids[None, :]).flatten()


def _nearest(count: int, side: int, divides: bool) -> Tensor:
    """floor(i / count * side) for i in 0..count - 1.

    Computed in float32 as in training: where the exact quotient is an integer, rounding decides.
    """
    boundaries = torch.arange(1 / side, 1.0, 1 / side)
    indices = torch.arange(count, dtype=torch.float32)
    fractions = indices / count if divides else indices * (1.0 / torch.tensor(count))
    return torch.bucketize(fractions.clamp(max=1 - 1e-6), boundaries, right=True)
