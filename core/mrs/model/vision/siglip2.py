"""SigLIP 2's vision tower."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.vision.towers.siglip2_tower import Siglip2Tower
from mrs.architecture.vision_spec import ImageShape
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.interpolate_positions import interpolate_smoothly
from mrs.model.vision.patches import FlatPatchEmbedding
from mrs.model.vision.siglip import nearest_position_ids


class Siglip2TowerModule:
    """Encodes views of an image, one at a time."""

    def __init__(self, tower: Siglip2Tower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = FlatPatchEmbedding(weights)
        self._positions = weights.vector("positions.weight")
        self._layers = build_layers(tower.layers, weights, "layer")
        self._norm = weights.norm("post_norm", tower.norm)

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (patches of all views, 3 * patch * patch) to (patches, hidden)."""
        parts = torch.split(pixels, [rows * columns for rows, columns in shape.views])
        views = zip(parts, shape.views, strict=True)
        return torch.cat([self._encode(part, *grid) for part, grid in views])

    def _encode(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """The patches of one view, row by row, to (rows * columns, hidden)."""
        x = self._patches(patches).add_(self._embeddings(rows, columns))
        for layer in self._layers:
            x = layer(x)
        return self._norm(x)

    def _embeddings(self, rows: int, columns: int) -> Tensor:
        """The position embedding of each patch, (rows * columns, hidden)."""
        if not self._tower.nearest:
            return interpolate_smoothly(self._positions, rows, columns)
        ids = nearest_position_ids(rows, columns, self._tower.position_side)
        return self._positions[ids.to(self._positions.device)]
