"""The vision tower of Llama 3.2 Vision (Mllama)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.mllama import ROWS_MULTIPLE, TilesTower, tile_grids
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import Padding, build_layers
from mrs.model.vision.patches import PatchEmbedding


class TilesTowerModule:
    """Encodes all tiles of an image together; unused tiles are padding and yield no features."""

    def __init__(self, tower: TilesTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._class = weights.vector("class")
        self._positions = weights.vector("positions")
        self._tile_positions = weights.vector("positions.tiles.weight")
        self._position_gate = weights.gate("positions.gate")
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
        grid_id = tile_grids(tiles).index((shape.grid[0], shape.grid[1])) + 1
        x = self._pre_norm(self._embed(pixels, grid_id))
        x = F.pad(x, (0, 0, 0, -positions % ROWS_MULTIPLE))
        padding = _padding(x.shape, used, positions, x.device)
        size, x = x.shape, x.flatten(0, 1)
        layer_inputs = {}
        for index, layer in enumerate(self._layers):
            if index in self._tower.selected:
                layer_inputs[index] = x
            x = layer(x, padding=padding)
        x = self._after.added_to(self._post_norm(x).view(size), grid_id).flatten(0, 1)
        for layer in self._global_layers:
            x = layer(x, padding=padding)
        selected = [layer_inputs[index][padding.others] for index in self._tower.selected]
        return torch.cat((x[padding.others], *_interleaved(selected)), dim=-1)

    def _embed(self, pixels: Tensor, grid_id: int) -> Tensor:
        """(tiles, positions, hidden): patches with their class token and position embeddings."""
        patches = torch.stack([self._patches(tile) for tile in pixels])
        patches = self._before.added_to(patches, grid_id)
        first = self._class.to(patches.dtype).expand(len(patches), 1, -1)
        x = torch.cat((first, patches), dim=1)
        gate = self._position_gate
        x = x + (self._positions * (1 - gate)).to(x.dtype)
        return x + (self._tile_positions[grid_id] * gate).to(x.dtype).view(x.shape)


class _TileVectors:
    """A learned vector for each tile of each grid, times a learned gate."""

    def __init__(self, weights: ModelWeights, slot: str) -> None:
        self._vectors = weights.vector(f"{slot}.weight")
        self._gate = weights.gate(f"{slot}.gate")

    def added_to(self, x: Tensor, grid_id: int) -> Tensor:
        """x (tiles, rows, hidden) plus the vector of each tile."""
        vectors = self._vectors[grid_id] * self._gate
        return x + vectors.to(x.dtype).view(len(x), 1, -1)


def _padding(size: torch.Size, used: int, positions: int, device: torch.device) -> Padding:
    """The rows of (tiles, rows, hidden) but the first `positions` of each of `used` tiles."""
    rows = torch.arange(size[0] * size[1], device=device).view(size[:2])
    after = rows[:used, positions:].flatten(), rows[used:].flatten()
    return Padding(torch.cat(after), rows[:used, :positions].flatten())


def _interleaved(features: list[Tensor]) -> list[Tensor]:
    """Several (T, H) as one (T, H * count), channel by channel; no tensor for an empty list."""
    return [torch.stack(features, dim=-1).flatten(1)] if features else []
