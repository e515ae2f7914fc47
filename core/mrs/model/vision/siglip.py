"""SigLIP's tower."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mrs.architecture.vision.towers.siglip_tower import SiglipTower
from mrs.architecture.vision_spec import ImageShape
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding
from mrs.model.weights import ModelWeights


class SiglipTowerPart:
    """Views to features, a view at a time."""

    def __init__(self, tower: SiglipTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._positions = weights.vector("positions.weight")
        self._layers = build_layers(tower.layers, weights, "layer")
        self._norm = weights.norm("post_norm", tower.norm)

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (V, C, height, width) to (V * patches, hidden)."""
        return torch.cat([self._see(view) for view in pixels])

    def _see(self, view: Tensor) -> Tensor:
        x = self._patches(view)
        x = x + self._places(view).to(x.dtype)
        for layer in self._layers:
            x = layer(x)
        return self._norm(x)

    def _places(self, view: Tensor) -> Tensor:
        """What was learned for the place of each patch, (patches, hidden)."""
        if not self._tower.fractional_positions:
            return self._positions
        size = self._tower.patches.size
        rows, columns = view.shape[1] // size, view.shape[2] // size
        return self._positions[nearest_places(rows, columns, self._tower.side).to(view.device)]


@lru_cache(maxsize=4)
def nearest_places(rows: int, columns: int, side: int) -> Tensor:
    """The numbers of the learned places, of `side` x `side`, for rows x columns of patches."""
    down, across = _buckets(rows, side), _buckets(columns, side)
    return (down[:, None] * side + across[None, :]).flatten()


def _buckets(count: int, side: int) -> Tensor:
    """How many boundaries of `side` equal stretches lie before each of `count` fractions.

    Where a fraction falls on a boundary float32 decides, as it did when models were trained.
    """
    boundaries = torch.arange(1 / side, 1.0, 1 / side)
    fractions = torch.arange(count, dtype=torch.float32) * (1.0 / torch.tensor(count))
    return torch.bucketize(fractions.clamp(max=1 - 1e-6), boundaries, right=True)
