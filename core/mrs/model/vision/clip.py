"""CLIP's vision tower."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.vision.towers.clip_tower import ClipTower
from mrs.architecture.vision_spec import ImageShape
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding


class ClipTowerModule:
    """Encodes square views of an image, one at a time."""

    def __init__(self, tower: ClipTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._class = weights.vector("class")
        self._positions = weights.vector("positions.weight")
        self._norm = weights.norm("pre_norm", tower.norm)
        self._layers = build_layers(tower.layers, weights, "layer")

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (V, C, S, S) to (V * patches, output_size)."""
        return torch.cat([self._encode(view) for view in pixels])

    def _encode(self, view: Tensor) -> Tensor:
        """view (C, S, S) to (patches, output_size): the selected layers side by side."""
        patches = self._patches(view)
        x = torch.cat((self._class[None].to(patches.dtype), patches)) + self._positions
        x = self._norm(x.to(patches.dtype))
        outputs = {0: x}
        for layers_done, layer in enumerate(self._layers, 1):
            x = layer(x)
            if layers_done in self._tower.selected:
                outputs[layers_done] = x
        features = torch.cat([outputs[done] for done in self._tower.selected], dim=-1)
        return features if self._tower.keeps_class else features[1:]
