"""Pixtral's vision tower, and the projector of Mistral 3."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.vision.shared_projectors import MlpProjector
from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.mistral3 import MergingProjector, PixtralTower
from mrs.kernels.rotate import rotate
from mrs.layers.attention.spec import Attention
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding
from mrs.model.vision.projectors import MlpProjectorModule


class PixtralTowerModule:
    """Encodes an image at its own resolution, with rotary embedding by row and column."""

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
        adjacent = self._tower.adjacent
        for layer in self._layers:
            x = layer(x, rope=lambda heads: rotate(heads, cos, sin, interleaved=adjacent))
        return x

    def _angles(self, rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin, (patches, head_dim / 2).

        Frequencies 0, 2, 4, … rotate by the row of a patch, 1, 3, 5, … by its column.
        """
        mixer = self._tower.layers[0].mixer
        assert isinstance(mixer, Attention)
        exponents = torch.arange(0, mixer.head_dim, 2, device=device).float() / mixer.head_dim
        frequencies = 1.0 / self._tower.rope_base**exponents
        by_row = torch.arange(rows, device=device).float()[:, None] * frequencies[0::2]
        by_column = torch.arange(columns, device=device).float()[:, None] * frequencies[1::2]
        by_row = by_row[:, None].expand(-1, columns, -1)
        by_column = by_column[None].expand(rows, -1, -1)
        angles = torch.cat((by_row, by_column), dim=-1).flatten(0, 1)
        return angles.cos(), angles.sin()


class MergingProjectorModule:
    """Merges each square of patches to one row, then applies an MLP.

    The features of the patches of a square are interleaved, channel by channel.
    """

    def __init__(self, projector: MergingProjector, weights: ModelWeights) -> None:
        self._merged, self._patch = projector.merged, projector.patch
        self._norm = weights.norm("projector.norm", projector.norm)
        self._merge = weights.linear("projector.merge")
        mlp = MlpProjector(projector.input_size, projector.activation, projector.bias)
        self._mlp = MlpProjectorModule(mlp, weights)

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (patches, input_size), row by row, to (rows, hidden)."""
        (rows, columns), merged = shape.grid, self._merged
        wide = shape.pixels[2] // self._patch
        table = self._norm(features).view(-1, wide, features.shape[-1])
        table = table[: rows * merged, : columns * merged]
        squares = table.reshape(rows, merged, columns, merged, -1)
        squares = squares.permute(0, 2, 4, 1, 3).reshape(rows * columns, -1)
        return self._mlp(self._merge(squares), shape)
