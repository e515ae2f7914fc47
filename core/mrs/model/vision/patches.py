"""Patch embedding: from pixels to vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.vision_spec import Patches
from mrs.model.model_weights import ModelWeights


class FlatPatchEmbedding:
    """A linear map of the pixels of each patch, whose weights may be those of a convolution."""

    def __init__(self, weights: ModelWeights) -> None:
        self._weight = weights.vector("patches.weight")
        self._bias = weights.optional_vector("patches.bias")

    def __call__(self, patches: Tensor) -> Tensor:
        """patches (T, size * size * 3), channels last, to (T, hidden)."""
        weight = self._weight.flatten(1)
        if self._weight.ndim > 2:  # (hidden, 3, size, size)
            size = self._weight.shape[-1]
            patches = patches.view(-1, size, size, 3).permute(0, 3, 1, 2).flatten(1)
        x = F.linear(patches.to(weight.dtype), weight).to(patches.dtype)
        return x if self._bias is None else x.add_(self._bias)


class PatchEmbedding:
    """A convolution whose stride is its kernel size, computed as one matrix product."""

    def __init__(self, patches: Patches, weights: ModelWeights) -> None:
        self._size = patches.size
        frames = range(1, patches.frames if patches.apart else 1)
        names = ["patches.weight", *(f"patches.{frame}.weight" for frame in frames)]
        self._weights = [weights.vector(name).flatten(1) for name in names]
        self._frames = 1 if patches.apart else patches.frames
        self._frames_first = patches.frames_first
        self._bias = weights.optional_vector("patches.bias")

    def __call__(self, view: Tensor) -> Tensor:
        """view (C, height, width), or (frames, C, height, width), to (patches, hidden), row by row.

        Cuts off incomplete patches.
        """
        size = self._size
        rows, columns = view.shape[-2] // size, view.shape[-1] // size
        cut = view[..., : rows * size, : columns * size]
        cut = cut.reshape(-1, *cut.shape[-3:-2], rows, size, columns, size)
        cut = cut.permute(2, 4, 1, 0, 3, 5)  # rows, columns, C, frames, size, size
        first, *others = self._weights
        parts = (
            torch.split(cut, 1, dim=3) if others else [cut.expand(-1, -1, -1, self._frames, -1, -1)]
        )
        if self._frames_first:
            parts = [part.transpose(2, 3) for part in parts]
        flat = [part.reshape(rows * columns, -1).to(first.dtype) for part in parts]
        x = F.linear(flat[0], first)
        for frame, weight in enumerate(others, 1):
            x += F.linear(flat[frame % len(flat)], weight)
        x = x.to(view.dtype)
        return x if self._bias is None else x + self._bias.to(x.dtype)
