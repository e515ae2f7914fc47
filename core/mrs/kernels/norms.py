"""Normalization over the last dimension, computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight; x (…, D), weight (D,) float32, result like x."""
    if library := elementwise.library_for(x):
        return elementwise.rms_norm(library, x, weight, eps)
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled * weight).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias; shapes as in `rms_norm`."""
    return torch.nn.functional.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)
