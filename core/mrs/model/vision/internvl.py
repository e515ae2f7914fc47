"""InternVL's vision tower."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.internvl import InternVlTower
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding


class InternVlTowerModule:
    """Encodes square views of an image, one at a time."""

    def __init__(self, tower: InternVlTower, weights: ModelWeights) -> None:
        self._patches = PatchEmbedding(tower.patches, weights)
        self._class = weights.vector("class")
        self._positions = weights.vector("positions")
        self._layers = build_layers(tower.layers, weights, "layer")
        self._norm = weights.norm("post_norm", tower.norm) if tower.norm else None

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (V, C, S, S) to (V * patches, hidden)."""
        return torch.cat([self._encode(view) for view in pixels])

    def _encode(self, view: Tensor) -> Tensor:
        """view (C, S, S) to (patches, hidden)."""
        patches = self._patches(view)
        x = torch.cat((self._class[None].to(patches.dtype), patches)) + self._positions
        x = x.to(patches.dtype)
        for layer in self._layers:
            x = layer(x)
        return x[1:] if self._norm is None else self._norm(x)[1:]
