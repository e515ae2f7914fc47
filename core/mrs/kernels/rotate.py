"""Rotate pairs of numbers: the arithmetic of rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Rotate the first 2 * P numbers of each head by its token's angles.

    x is (T, H, D), cos and sin are (T, P). Pairs are (i, i + P), or (2i, 2i + 1) with
    `interleaved`; numbers from 2 * P on pass through.
    """
    if library := elementwise.library_for(x):
        return elementwise.rotate(library, x, cos, sin, interleaved)
    pairs = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]  # (T, 1, P)
    head, rest = x[..., : 2 * pairs].float(), x[..., 2 * pairs :]
    if interleaved:
        first, second = head[..., 0::2], head[..., 1::2]
        turned = torch.stack(
            (first * cos - second * sin, second * cos + first * sin), dim=-1
        ).flatten(-2)
    else:
        first, second = head[..., :pairs], head[..., pairs:]
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    turned = turned.to(x.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
