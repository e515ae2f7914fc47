"""Pixtral's tower, and the projector that Mistral puts behind it."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.layers import Attention
from mrs.architecture.vision.shared_projectors import MlpProjector
from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.mistral3 import MergingProjector, PixtralTower
from mrs.kernels.rotate import rotate
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding
from mrs.model.vision.projectors import MlpProjectorPart
from mrs.model.weights import ModelWeights


class PixtralTowerPart:
    """A picture's own grid of patches, turned by row and column."""

    def __init__(self, tower: PixtralTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._norm = weights.norm("pre_norm", tower.norm)
        self._layers = build_layers(tower.layers, weights, "layer")

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (C, height, width) to (patches, hidden)."""
        x = self._norm(self._patches(pixels))
        size = self._tower.patches.size
        cos, sin = self._angles(pixels.shape[1] // size, pixels.shape[2] // size, x.device)
        for layer in self._layers:
            x = layer(x, turn=lambda heads: rotate(heads, cos, sin))
        return x

    def _angles(self, rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin, (patches, head_dim / 2): frequencies go to rows and columns in turn."""
        mixer = self._tower.layers[0].mixer
        assert isinstance(mixer, Attention)
        exponents = torch.arange(0, mixer.head_dim, 2, device=device).float() / mixer.head_dim
        frequencies = 1.0 / self._tower.rope_base**exponents
        down = torch.arange(rows, device=device).float()[:, None] * frequencies[0::2]
        across = torch.arange(columns, device=device).float()[:, None] * frequencies[1::2]
        down = down[:, None].expand(-1, columns, -1)
        across = across[None].expand(rows, -1, -1)
        angles = torch.cat((down, across), dim=-1).flatten(0, 1)
        return angles.cos(), angles.sin()


class MergingProjectorPart:
    """Puts the patches of each square side by side, number by number."""

    def __init__(self, projector: MergingProjector, weights: ModelWeights) -> None:
        self._merged = projector.merged
        self._norm = weights.norm("projector.norm", projector.norm)
        self._merge = weights.linear("projector.merge")
        mlp = MlpProjector(projector.input_size, projector.activation, projector.bias)
        self._mlp = MlpProjectorPart(mlp, weights)

    def __call__(self, seen: Tensor, shape: ImageShape) -> Tensor:
        rows, columns = shape.grid
        merged = self._merged
        table = self._norm(seen).view(rows, merged, columns, merged, -1)
        squares = table.permute(0, 2, 4, 1, 3).reshape(rows * columns, -1)
        return self._mlp(self._merge(squares), shape)
