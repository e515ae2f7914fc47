"""The vision tower of the Qwen-VL families and of GLM's, and the projectors of both."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.vision.patch_merger import PatchMerger
from mrs.architecture.vision.towers.qwen_tower import QwenTower
from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.glm4v import ConvolvedMerger
from mrs.kernels.nonlinearities import activated
from mrs.kernels.rotate import rotate
from mrs.layers.attention.spec import Attention
from mrs.layers.mlp.module import MlpModule
from mrs.layers.mlp.spec import Mlp
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import ApplyRope, build_layers
from mrs.model.vision.interpolate_positions import (
    interpolate_cubically,
    interpolate_edges,
    interpolate_positions,
)
from mrs.model.vision.patches import PatchEmbedding

_INTERPOLATIONS = {
    "corners": interpolate_positions,
    "edges": interpolate_edges,
    "cubic": interpolate_cubically,
}


class QwenTowerModule:
    """Encodes images of any size, with rotary embedding and, in Qwen2.5-VL, windows."""

    def __init__(self, tower: QwenTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._positions = None
        if tower.position_side:
            self._positions = weights.vector("positions.weight")
        self._interpolate = _INTERPOLATIONS[tower.interpolation]
        self._pre_norm = weights.norm("pre_norm", tower.pre_norm) if tower.pre_norm else None
        self._norm = weights.norm("post_norm", tower.norm) if tower.norm else None
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
        if self._norm is not None:
            x = self._norm(x)
        x = torch.cat((x, *features), dim=1) if features else x
        return x[order.argsort()]

    def _embed(self, pixels: Tensor, rows: int, columns: int) -> Tensor:
        """The patches of pixels with their positions, (patches, hidden)."""
        x = self._patches(pixels)
        if self._pre_norm is not None:
            x = self._pre_norm(x)
        if self._positions is None:
            return x
        return x.add_(self._interpolate(self._positions, rows, columns))

    def _rope(self, rows: Tensor, columns: Tensor) -> ApplyRope | None:
        """Rotates heads of patches at `rows` (T,) and `columns` (T,), if there is attention."""
        mixers = (layer.mixer for layer in self._tower.layers)
        sizes = {mixer.head_dim for mixer in mixers if isinstance(mixer, Attention)}
        if not sizes:
            return None
        angles = axial_angles(rows, columns, sizes.pop(), self._tower.rope_base)
        cos, sin = angles.cos(), angles.sin()
        return lambda heads: rotate(heads, cos, sin)


def axial_angles(first: Tensor, second: Tensor, head_dim: int, base: float) -> Tensor:
    """Rotary angles (T, head_dim / 2) of patches at these places (T,) along two edges of the image.

    One half of the pairs rotates by the first, the other half by the second.
    """
    dim = head_dim // 2
    exponents = torch.arange(0, dim, 2, device=first.device).float() / dim
    frequencies = base**-exponents
    return torch.cat((first[:, None] * frequencies, second[:, None] * frequencies), dim=-1)


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
        last, *others = features.chunk(1 + len(self._deep), dim=1)
        merged = [self._mlp(squares(self._norm(last), shape, self._merge))]
        for (norm, mlp), each in zip(self._deep, others, strict=True):
            merged.append(mlp(norm(squares(each, shape, self._merge))))
        return torch.cat(merged, dim=1) if others else merged[0]


class ConvolvedMergerModule:
    """Merges each square of `merge` x `merge` patches to one row by a convolution, then an MLP."""

    def __init__(self, projector: ConvolvedMerger, weights: ModelWeights) -> None:
        self._merge = projector.merge
        self._weight = weights.vector("projector.merge.weight").flatten(1)
        self._bias = weights.vector("projector.merge.bias")
        self._in = weights.linear("projector.in")
        self._norm = weights.norm("projector.norm", projector.norm)
        self._mlp = MlpModule(projector.mlp, weights, "projector")

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (patches, width), row by row, to (rows, hidden)."""
        x = squares(features, shape, self._merge)
        # As in the weight, the patches of a value are adjacent.
        x = x.view(len(x), self._merge**2, -1).transpose(1, 2).flatten(1)
        x = F.linear(x.to(self._weight.dtype), self._weight).to(features.dtype)
        x = self._norm(self._in(x.add_(self._bias)))
        return self._mlp(activated("gelu", x))


def squares(features: Tensor, shape: ImageShape, merge: int) -> Tensor:
    """features (patches, width) to (rows, merge * merge * width)."""
    rows, columns = shape.grid
    patches = features.reshape(rows, merge, columns, merge, -1)
    return patches.transpose(1, 2).reshape(rows * columns, -1)
