"""The vision tower of the Qwen-VL families, and its projector."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.vision.patch_merger import PatchMerger
from mrs.architecture.vision.towers.qwen_tower import QwenTower
from mrs.architecture.vision_spec import ImageShape
from mrs.kernels.rotate import rotate
from mrs.model.mlp import MlpModule
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import ApplyRope, build_layers
from mrs.model.vision.interpolate_positions import interpolate_positions
from mrs.model.vision.patches import PatchEmbedding


class QwenTowerModule:
    """Encodes images of any size, with rotary embedding and, in Qwen2.5-VL, windows."""

    def __init__(self, tower: QwenTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._positions = None
        if tower.position_side:
            self._positions = weights.vector("positions.weight")
        self._norm = None
        if tower.patch_norm is not None:
            self._norm = weights.norm("pre_norm", tower.patch_norm)
        self._layers = build_layers(tower.layers, weights, "layer")

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (3, height, width), or (frames, 3, height, width) of a video, to (patches,
        output_size), row by row."""
        tower, size = self._tower, self._tower.patches.size
        rows, columns = pixels.shape[-2] // size, pixels.shape[-1] // size
        order, window_starts = window_order(rows, columns, tower.window or max(rows, columns))
        order = order.to(pixels.device)
        rope = self._rope(order // columns, order % columns)
        x = self._embed(pixels, rows, columns)[order]
        features = []
        for index, layer in enumerate(self._layers):
            starts = () if index in tower.full else window_starts
            x = layer(x, window_starts=starts, rope=rope, grid=(rows, columns))
            if index in tower.tapped:
                features.append(x)
        x = torch.cat((x, *features), dim=1) if features else x
        return x[order.argsort()]

    def _embed(self, pixels: Tensor, rows: int, columns: int) -> Tensor:
        """The patches of pixels with their positions, (patches, hidden)."""
        x = self._patches(pixels)
        if self._norm is not None:
            x = self._norm(x)
        if self._positions is None:
            return x
        return x.add_(interpolate_positions(self._positions, rows, columns))

    def _rope(self, rows: Tensor, columns: Tensor) -> ApplyRope | None:
        """Rotates heads of patches at `rows` (T,) and `columns` (T,), if there is attention."""
        mixers = (layer.mixer for layer in self._tower.layers)
        sizes = {mixer.head_dim for mixer in mixers if isinstance(mixer, Attention)}
        if not sizes:
            return None
        dim = sizes.pop() // 2
        exponents = torch.arange(0, dim, 2, device=rows.device).float() / dim
        frequencies = self._tower.rope_base**-exponents
        angles = torch.cat((rows[:, None] * frequencies, columns[:, None] * frequencies), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return lambda heads: rotate(heads, cos, sin)


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
        mlp = Mlp(0, projector.activation, gated=False, bias=projector.bias)
        self._mlp = MlpModule(mlp, weights, "projector")
        slots = [f"projector.deep.{index}" for index in range(projector.deep)]
        self._deep = [
            (weights.norm(f"{slot}.norm", projector.norm), MlpModule(mlp, weights, slot))
            for slot in slots
        ]

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (patches, (1 + deep) * width), row by row, to (rows, (1 + deep) * hidden)."""
        own, *others = features.chunk(1 + len(self._deep), dim=1)
        merged = [self._mlp(self._squares(self._norm(own), shape))]
        for (norm, mlp), each in zip(self._deep, others, strict=True):
            merged.append(mlp(norm(self._squares(each, shape))))
        return torch.cat(merged, dim=1) if others else merged[0]

    def _squares(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (patches, width) to (rows, merge * merge * width)."""
        (rows, columns), merge = shape.grid, self._merge
        patches = features.reshape(rows, merge, columns, merge, -1)
        return patches.transpose(1, 2).reshape(rows * columns, -1)
