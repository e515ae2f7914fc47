"""Normalization over the last dimension, computed in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight; x (…, D), weight (D,) float32 or 1; in x's dtype.

    The weight may be that of each of H heads (H, D).
    """
    if library := elementwise.library_for(x):
        if weight is not None and weight.ndim > 1:
            return elementwise.rms_norm(library, x, None, eps).mul_(weight)
        return elementwise.rms_norm(library, x, weight, eps)
    x_float = x.float()
    scaled = x_float * torch.rsqrt(x_float.square().mean(-1, keepdim=True) + eps)
    return (scaled if weight is None else scaled * weight).to(x.dtype)


def rms_norm_of_parts(
    x: Tensor, weight: Tensor | None, eps: float, sum_parts: Callable[[Tensor], Tensor]
) -> Tensor:
    """The RMS norm of values of which x (…, D) is a shard; `sum_parts` adds up all shards' sums."""
    x_float = x.float()
    squares = x_float.square().sum(-1, keepdim=True)
    total = sum_parts(torch.cat((squares, torch.full_like(squares, x.shape[-1])), dim=-1))
    scaled = x_float * torch.rsqrt(total[..., :1] / total[..., 1:] + eps)
    return (scaled if weight is None else scaled * weight).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias; shapes as in `rms_norm`.

    The weight may be that of each of H heads (H, D), without a bias.
    """
    if library := elementwise.library_for(x):
        return elementwise.layer_norm(library, x, weight, bias, eps)
    shape, wide = x.shape[-1:], x.float()
    if weight is None or weight.ndim == 1:
        return torch.nn.functional.layer_norm(wide, shape, weight, bias, eps).to(x.dtype)
    normed = torch.nn.functional.layer_norm(wide, shape, None, None, eps)
    return normed.mul_(weight).to(x.dtype)
