"""The vision tower of Qwen2-VL and Qwen2.5-VL, and its projector."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.vision.towers.qwen_tower import PatchMerger, QwenTower
from mrs.architecture.vision_spec import ImageShape
from mrs.kernels.rotate import rotate
from mrs.model.mlp import MlpModule
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding


class QwenTowerModule:
    """Encodes images of any size, with rotary embedding and, in Qwen2.5-VL, windows."""

    def __init__(self, tower: QwenTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._layers = build_layers(tower.layers, weights, "layer")

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (3, height, width) to (patches, hidden), row by row."""
        tower, size = self._tower, self._tower.patches.size
        rows, columns = pixels.shape[1] // size, pixels.shape[2] // size
        order, window_starts = window_order(rows, columns, tower.window or max(rows, columns))
        order = order.to(pixels.device)
        angles = self._angles(order // columns, order % columns)
        cos, sin = angles.cos(), angles.sin()
        x = self._patches(pixels)[order]
        for index, layer in enumerate(self._layers):
            starts = () if index in tower.full else window_starts
            x = layer(x, window_starts=starts, rope=lambda heads: rotate(heads, cos, sin))
        return x[order.argsort()]

    def _angles(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Rotary angles (T, head_dim / 2) of patches at `rows` (T,) and `columns` (T,)."""
        mixer = self._tower.layers[0].mixer
        assert isinstance(mixer, Attention)
        dim = mixer.head_dim // 2
        exponents = torch.arange(0, dim, 2, device=rows.device).float() / dim
        frequencies = self._tower.rope_base**-exponents
        return torch.cat((rows[:, None] * frequencies, columns[:, None] * frequencies), dim=-1)


def window_order(rows: int, columns: int, side: int) -> tuple[Tensor, list[int]]:
    """An image's patches in window order, and the starts of all windows but the first.

    A window has `side` x `side` patches, or fewer at the lower and right edges. Windows of equal
    size are adjacent, so that they can be computed together.
    """
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    windows_per_row = -(-columns // side)
    window = row // side * windows_per_row + column // side
    is_at_bottom = row >= rows // side * side
    is_at_right = column >= columns // side * side
    windows = windows_per_row * -(-rows // side)
    sort_key = ((is_at_bottom * 2 + is_at_right) * windows + window).flatten()
    sizes = sort_key.bincount()
    return sort_key.argsort(stable=True), sizes[sizes > 0].cumsum(0)[:-1].tolist()


class PatchMergerModule:
    """Merges each square of `merge` x `merge` patches to one row with an MLP."""

    def __init__(self, projector: PatchMerger, weights: ModelWeights) -> None:
        self._merge = projector.merge
        self._norm = weights.norm("projector.norm", projector.norm)
        self._mlp = MlpModule(Mlp(0, "gelu", gated=False, bias=True), weights, "projector")

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (patches, width), row by row, to (rows, hidden)."""
        (rows, columns), merge = shape.grid, self._merge
        patches = self._norm(features).view(rows, merge, columns, merge, -1)
        return self._mlp(patches.transpose(1, 2).reshape(rows * columns, -1))
