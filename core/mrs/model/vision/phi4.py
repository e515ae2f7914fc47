"""Phi-4-multimodal's vision tower."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.phi4_multimodal import Phi4Tower
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding
from mrs.model.vision.siglip import nearest_position_ids


class Phi4TowerModule:
    """Encodes crops of an image, one at a time."""

    def __init__(self, tower: Phi4Tower, weights: ModelWeights) -> None:
        self._side = tower.side
        self._patches = PatchEmbedding(tower.patches, weights)
        self._positions = weights.vector("positions.weight")
        self._layers = build_layers(tower.layers, weights, "layer")

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (V, C, height, width) to (V * patches, hidden)."""
        views = zip(pixels, shape.views, strict=True)
        return torch.cat([self._encode(view, *grid) for view, grid in views])

    def _encode(self, view: Tensor, rows: int, columns: int) -> Tensor:
        """view (C, height, width) to (patches, hidden); rows x columns patches are content."""
        ids, content = (x.to(view.device) for x in padded_position_ids(rows, columns, self._side))
        x = self._patches(view)
        x = x + self._positions[ids].to(x.dtype)
        for layer in self._layers:
            x = layer(x, content=content)
        return x


@lru_cache(maxsize=8)
def padded_position_ids(rows: int, columns: int, side: int) -> tuple[Tensor, Tensor]:
    """(positions of side x side patches, with 0 for padding; the rows of the other patches)."""
    ids, content = torch.zeros(2, side, side, dtype=torch.long).unbind()
    ids[:rows, :columns] = nearest_position_ids(rows, columns, side).view(rows, columns)
    content[:rows, :columns] = 1
    return ids.flatten(), content.flatten().nonzero().flatten()
