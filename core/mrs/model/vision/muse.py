"""The vision tower of Muse Glimmer."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.muse_glimmer import MuseTower
from mrs.kernels.rotate import rotate
from mrs.layers.attention.spec import Attention
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.interpolate_positions import sample_positions
from mrs.model.vision.patches import PatchEmbedding
from mrs.model.vision.qwen import axial_angles, window_order


class MuseTowerModule:
    """Encodes images of any size, with learned positions, rope and windows."""

    def __init__(self, tower: MuseTower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._positions = weights.vector("positions.weight")
        self._pre_norm = weights.norm("pre_norm", tower.norm)
        self._norm = weights.norm("post_norm", tower.norm)
        self._layers = build_layers(tower.layers, weights, "layer")

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (3, height, width) to (patches, hidden), row by row."""
        tower, ((rows, columns),) = self._tower, shape.views
        mixer = tower.layers[0].mixer
        assert isinstance(mixer, Attention)
        order, window_starts = window_order(rows, columns, tower.side)
        order = order.to(pixels.device)
        angles = axial_angles(order % columns, order // columns, mixer.head_dim, tower.rope_base)
        cos, sin = angles.cos(), angles.sin()
        # As the model was trained: the positions of an image of `columns` x `rows` patches, one
        # after another. In a square image they are those of the patches.
        x = self._patches(pixels)
        x = self._pre_norm(x.add_(sample_positions(self._positions, columns, rows)))[order]
        rope = partial(rotate, cos=cos, sin=sin, interleaved=tower.adjacent)
        for index, layer in enumerate(self._layers):
            starts = () if index in tower.full else window_starts
            x = layer(x, window_starts=starts, rope=rope)
        return self._norm(x[order.argsort()])
