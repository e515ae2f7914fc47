"""Rows of MLX's affine weights."""

from __future__ import annotations

from torch import Tensor

from mrs.architecture.schemes.mlx import Mlx
from mrs.architecture.weight_scheme import Layout
from mrs.load.schemes.affine_blocks import affine_blocks, unpack_stream
from mrs.load.schemes.part_reader import PartReader


def unpack(scheme: Mlx, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
    codes = unpack_stream(parts.rows("codes", rows), layout.bits, columns)
    scales, biases = (parts.rows(role, rows).float() for role in ("scales", "biases"))
    return affine_blocks(layout, codes, scales, biases=biases)
