"""Llama 3.2's tower."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.vision.towers.mllama_tower import ROWS_MULTIPLE, TilesTower, tile_grids
from mrs.architecture.vision_spec import ImageShape
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding
from mrs.model.weights import ModelWeights


class TilesTowerPart:
    """All tiles of a picture, used or not, to the features of those used."""

    def __init__(self, tower: TilesTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._class = weights.vector("class")
        self._positions = weights.vector("positions")
        self._tile_positions = weights.vector("positions.tiles.weight")
        self._position_gate = _gate(weights, "positions")
        self._before = _TileVectors(weights, "tiles_before")
        self._after = _TileVectors(weights, "tiles_after")
        self._pre_norm = weights.norm("pre_norm", tower.norm)
        self._post_norm = weights.norm("post_norm", tower.norm)
        self._layers = build_layers(tower.layers, weights, "layer")
        self._global_layers = build_layers(tower.global_layers, weights, "global")

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (tiles, C, S, S) to (used tiles * positions, output_size)."""
        tiles, positions = pixels.shape[0], self._tower.positions
        used = math.prod(shape.grid)
        number = tile_grids(tiles).index((shape.grid[0], shape.grid[1])) + 1
        x = self._pre_norm(self._embed(pixels, number))
        x = F.pad(x, (0, 0, 0, -positions % ROWS_MULTIPLE))
        blank = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        blank[:used, :positions] = False
        size, blank, x = x.shape, blank.flatten(), x.flatten(0, 1)
        entered = {}
        for index, layer in enumerate(self._layers):
            if index in self._tower.selected:
                entered[index] = x
            x = layer(x, blank=blank)
        x = self._after.added_to(self._post_norm(x).view(size), number).flatten(0, 1)
        for layer in self._global_layers:
            x = layer(x, blank=blank)
        sides = [entered[index][~blank] for index in self._tower.selected]
        return torch.cat((x[~blank], *_taking_turns(sides)), dim=-1)

    def _embed(self, pixels: Tensor, number: int) -> Tensor:
        """(tiles, positions, hidden); `number` is that of the picture's grid."""
        patches = torch.stack([self._patches(tile) for tile in pixels])
        patches = self._before.added_to(patches, number)
        first = self._class.to(patches.dtype).expand(len(patches), 1, -1)
        x = torch.cat((first, patches), dim=1)
        gate = self._position_gate
        x = x.add(self._positions.to(x.dtype), alpha=1 - gate)
        return x.add(self._tile_positions[number].to(x.dtype).view(x.shape), alpha=gate)


class _TileVectors:
    """A learned vector for each tile of each grid, times a learned number."""

    def __init__(self, weights: ModelWeights, slot: str) -> None:
        self._vectors = weights.vector(f"{slot}.weight")
        self._gate = _gate(weights, slot)

    def added_to(self, x: Tensor, number: int) -> Tensor:
        """x (tiles, rows, hidden)."""
        vectors = self._vectors[number].to(x.dtype).view(len(x), 1, -1)
        return x.add(vectors, alpha=self._gate)


def _gate(weights: ModelWeights, slot: str) -> float:
    return math.tanh(float(weights.vector(f"{slot}.gate")))


def _taking_turns(sides: list[Tensor]) -> list[Tensor]:
    """Numbers of several (T, H) one after another: first the first of each; none where there is none."""
    return [torch.stack(sides, dim=-1).flatten(1)] if sides else []
