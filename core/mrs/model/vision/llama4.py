"""The vision tower of Llama 4."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.llama4 import NORM, Llama4Tower
from mrs.kernels.rotate import rotate
from mrs.layers.attention.spec import Attention
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers
from mrs.model.vision.patches import PatchEmbedding


class Llama4TowerModule:
    """Encodes tiles of an image, one at a time."""

    def __init__(self, tower: Llama4Tower, weights: ModelWeights) -> None:
        self._tower = tower
        self._patches = PatchEmbedding(tower.patches, weights)
        self._class = weights.vector("class")
        self._positions = weights.vector("positions")
        self._pre_norm, self._norm = weights.norm("pre_norm", NORM), weights.norm("post_norm", NORM)
        self._layers = build_layers(tower.layers, weights, "layer")

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (V, C, S, S) to (V * patches, hidden)."""
        angles = self._angles(pixels.device)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([self._encode(view, cos, sin) for view in pixels])

    def _encode(self, view: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """view (C, S, S) to (patches, hidden)."""
        patches = self._patches(view)
        x = torch.cat((patches, self._class[None].to(patches.dtype))) + self._positions
        x = self._pre_norm(x.to(patches.dtype))
        for layer in self._layers:
            x = layer(x, rope=lambda heads: rotate(heads, cos, sin, interleaved=True))
        return self._norm(x)[:-1]

    def _angles(self, device: torch.device) -> Tensor:
        """Rotary angles (patches + 1, head_dim / 2); those of the class token are 0."""
        mixer, side = self._tower.layers[0].mixer, self._tower.side
        assert isinstance(mixer, Attention)
        dim = mixer.head_dim // 2
        exponents = torch.arange(0, dim, 2, device=device).float() / dim
        frequencies = self._tower.rope_base**-exponents
        patches = torch.arange(side * side, device=device)[:, None]
        angles = [(at + 1) * frequencies for at in (patches % side, patches // side)]
        return F.pad(torch.cat(angles, dim=1), (0, 0, 0, 1))
