"""The tower of Qwen2-VL and Qwen2.5-VL, and how its patches become rows."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.layers import Attention, Mlp
from mrs.architecture.vision.towers.qwen_tower import PatchMerger, QwenTower
from mrs.architecture.vision_spec import ImageShape
from mrs.kernels.rotate import rotate
from mrs.model.mlp import MlpModule
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding
from mrs.model.weights import ModelWeights


class QwenTowerPart:
    """Pictures of any size to features of their patches."""

    def __init__(self, tower: QwenTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._layers = build_layers(tower.layers, weights, "layer")

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (3, height, width) to (patches, hidden), row by row."""
        tower, size = self._tower, self._tower.patches.size
        rows, columns = pixels.shape[1] // size, pixels.shape[2] // size
        order, cuts = window_order(rows, columns, tower.window or max(rows, columns))
        order = order.to(pixels.device)
        angles = self._angles(order // columns, order % columns)
        cos, sin = angles.cos(), angles.sin()
        x = self._patches(pixels)[order]
        for number, layer in enumerate(self._layers):
            seen = () if number in tower.full else cuts
            x = layer(x, cuts=seen, turn=lambda heads: rotate(heads, cos, sin))
        return x[order.argsort()]

    def _angles(self, rows: Tensor, columns: Tensor) -> Tensor:
        """(T, head_dim / 2) of patches at the places (T,)."""
        mixer = self._tower.layers[0].mixer
        assert isinstance(mixer, Attention)
        dim = mixer.head_dim // 2
        exponents = torch.arange(0, dim, 2, device=rows.device).float() / dim
        frequencies = self._tower.rope_base**-exponents
        return torch.cat((rows[:, None] * frequencies, columns[:, None] * frequencies), dim=-1)


def window_order(rows: int, columns: int, side: int) -> tuple[Tensor, list[int]]:
    """Patches of a picture, window after window, and where a new window begins.

    A window has `side` patches on each side, or what is left of them at the edges. Windows of one
    size lie together, so that they can be worked on at once.
    """
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    across = -(-columns // side)
    window = row // side * across + column // side
    is_low = row >= rows // side * side
    is_narrow = column >= columns // side * side
    count = across * -(-rows // side)
    kind = (is_low * 2 + is_narrow) * count
    number = (kind + window).flatten()
    sizes = number.bincount()
    return number.argsort(stable=True), sizes[sizes > 0].cumsum(0)[:-1].tolist()


class PatchMergerPart:
    """Neighbouring patches to one row."""

    def __init__(self, projector: PatchMerger, weights: ModelWeights) -> None:
        self._merge = projector.merge
        self._norm = weights.norm("projector.norm", projector.norm)
        self._mlp = MlpModule(Mlp(0, "gelu", gated=False, bias=True), weights, "projector")

    def __call__(self, seen: Tensor, shape: ImageShape) -> Tensor:
        """seen (patches, width), row by row, to (rows, hidden)."""
        (rows, columns), merge = shape.grid, self._merge
        patches = self._norm(seen).view(rows, merge, columns, merge, -1)
        return self._mlp(patches.transpose(1, 2).reshape(rows * columns, -1))
