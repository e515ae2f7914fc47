"""The encoder of Whisper."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.whisper import FRAMES_PER_ROW, NoProjector, WindowTower
from mrs.kernels.nonlinearities import activated
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import build_layers


class WindowTowerModule:
    """Encodes one window."""

    def __init__(self, tower: WindowTower, weights: ModelWeights) -> None:
        strides = {"convolution.0": 1, "convolution.1": FRAMES_PER_ROW}
        self._convolutions = [
            (weights.vector(f"{name}.weight"), weights.vector(f"{name}.bias"), stride)
            for name, stride in strides.items()
        ]
        self._positions = weights.vector("positions.weight")
        self._layers = build_layers(tower.layers, weights, "layer")
        self._norm = weights.norm("post_norm", tower.norm)

    def __call__(self, pixels: Tensor, shape: ImageShape) -> Tensor:
        """pixels (bands, frames) to (rows, hidden)."""
        x = pixels[None]
        for weight, bias, stride in self._convolutions:
            x = activated("gelu", F.conv1d(x, weight.to(x.dtype), bias.to(x.dtype), stride, 1))
        x = x[0].T + self._positions.to(x.dtype)
        for layer in self._layers:
            x = layer(x)
        return self._norm(x)


class NoProjectorModule:
    """Leaves features as they are."""

    def __init__(self, projector: NoProjector, weights: ModelWeights) -> None:
        pass

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        return features
