"""From pixels to vectors."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.vision_spec import Patches
from mrs.model.weights import ModelWeights


class PatchEmbedding:
    """One product a patch: a convolution whose steps are as long as its kernel."""

    def __init__(self, patches: Patches, weights: ModelWeights) -> None:
        self._size, self._frames = patches.size, patches.frames
        self._weight = weights.vector("patches.weight").flatten(1)
        self._bias = weights.optional_vector("patches.bias")

    def __call__(self, view: Tensor) -> Tensor:
        """view (C, height, width) to (patches, hidden), row by row."""
        size = self._size
        rows, columns = view.shape[1] // size, view.shape[2] // size
        cut = view[:, : rows * size, : columns * size]
        cut = cut.reshape(len(view), rows, size, columns, size)
        frames = cut.permute(1, 3, 0, 2, 4).unsqueeze(3).expand(-1, -1, -1, self._frames, -1, -1)
        flat = frames.reshape(rows * columns, -1)
        x = F.linear(flat.to(self._weight.dtype), self._weight).to(view.dtype)
        return x if self._bias is None else x + self._bias.to(x.dtype)
