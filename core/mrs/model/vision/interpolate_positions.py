"""Learned position embeddings of a square, for images of other sizes."""

from __future__ import annotations

from math import isqrt
from typing import Any

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


def _interpolate(
    table: Tensor, rows: int, columns: int, mode: str = "bilinear", **how: Any
) -> Tensor:
    side = isqrt(len(table))
    square = table.float().view(1, side, side, -1).permute(0, 3, 1, 2)
    scaled = F.interpolate(square, (rows, columns), mode=mode, **how)
    return scaled.permute(0, 2, 3, 1).reshape(rows * columns, -1)
