"""Normalization over the last dimension, computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight; x (…, D), weight (D,) float32 or 1; in x's dtype."""
    if weight is not None and (library := elementwise.library_for(x)):
        return elementwise.rms_norm(library, x, weight, eps)
    x_float = x.float()
    scaled = x_float * torch.rsqrt(x_float.square().mean(-1, keepdim=True) + eps)
    return (scaled if weight is None else scaled * weight).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias; shapes as in `rms_norm`."""
    return torch.nn.functional.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)
