"""A gated convolution over the patches of an image, as in layers of LFM 3's tower."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mrs.model.model_weights import ModelWeights


class GridConvolutionModule:
    """out(gate_out * convolution(gate_in * inner)), where in(x) = gate_in, gate_out, inner."""

    def __init__(self, weights: ModelWeights) -> None:
        self._in, self._out = weights.linear("mixer.in"), weights.linear("mixer.out")
        self._weight = weights.vector("mixer.conv.weight")[:, None]  # (channels, 1, side, side)

    def __call__(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (rows * columns, hidden), row by row, to the same shape."""
        gate_in, gate_out, inner = self._in(x).chunk(3, dim=-1)
        channels, side = inner.shape[1], self._weight.shape[-1]
        image = (gate_in * inner).T.reshape(channels, *grid)
        weight = self._weight.to(image.dtype)
        out = F.conv2d(image[None], weight, padding=side // 2, groups=channels)
        return self._out(gate_out * out[0].flatten(1).T)
