"""CLIP's tower."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.vision.towers.clip_tower import ClipTower
from mrs.architecture.vision_spec import ImageShape
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding
from mrs.model.weights import ModelWeights


class ClipTowerPart:
    """Square views to features, a view at a time."""

    def __init__(self, tower: ClipTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._class = weights.vector("class")
        self._positions = weights.vector("positions.weight")
        self._norm = weights.norm("pre_norm", tower.norm)
        self._layers = build_layers(tower.layers, weights, "layer")

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (V, C, S, S) to (V * patches, output_size)."""
        return torch.cat([self._see(view) for view in pixels])

    def _see(self, view: Tensor) -> Tensor:
        patches = self._patches(view)
        x = torch.cat((self._class[None].to(patches.dtype), patches)) + self._positions
        x = self._norm(x.to(patches.dtype))
        results = {0: x}
        for number, layer in enumerate(self._layers, 1):
            x = layer(x)
            if number in self._tower.selected:
                results[number] = x
        seen = torch.cat([results[number] for number in self._tower.selected], dim=-1)
        return seen if self._tower.keeps_class else seen[1:]
