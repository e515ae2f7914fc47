"""Learned position embeddings of a square, for images of other sizes."""

from __future__ import annotations

from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def interpolate_positions(table: Tensor, rows: int, columns: int) -> Tensor:
    """The table (side * side, hidden), scaled to (rows * columns, hidden) in float32.

    The corners of the square get to the corners of the image, and values between are bilinear.
    """
    return _interpolate(table, rows, columns, align_corners=True)


def interpolate_edges(table: Tensor, rows: int, columns: int) -> Tensor:
    """The same, so that the edges of the square get to those of the image."""
    return _interpolate(table, rows, columns, align_corners=False)


def interpolate_cubically(table: Tensor, rows: int, columns: int) -> Tensor:
    """As `interpolate_edges`, by cubic functions."""
    return _interpolate(table, rows, columns, mode="bicubic", align_corners=False)


def interpolate_smoothly(table: Tensor, rows: int, columns: int) -> Tensor:
    """As `interpolate_positions`, resampled as pixels are: a mean where the image is smaller."""
    return _interpolate(table, rows, columns, align_corners=False, antialias=True)


def sample_positions(table: Tensor, rows: int, columns: int) -> Tensor:
    """The table laid over the image: bilinear at the centres of patches, and 0 outside of it."""
    side = isqrt(len(table))
    down, across = (_weights(count, side, table.device) for count in (rows, columns))
    square = table.float().view(side, side, -1)
    return torch.einsum("rd,ca,dah->rch", down, across, square).flatten(0, 1)


def _weights(count: int, side: int, device: torch.device) -> Tensor:
    """(count, side): how much each entry counts at each of `count` places along an edge."""
    places = (torch.arange(count, device=device) + 0.5) * side / count - 0.5
    return (1 - (places[:, None] - torch.arange(side, device=device)).abs()).clamp(min=0)


def _interpolate(
    table: Tensor, rows: int, columns: int, mode: str = "bilinear", **how: Any
) -> Tensor:
    side = isqrt(len(table))
    square = table.float().view(1, side, side, -1).permute(0, 3, 1, 2)
    scaled = F.interpolate(square, (rows, columns), mode=mode, **how)
    return scaled.permute(0, 2, 3, 1).reshape(rows * columns, -1)
