"""Rows of the integer weights of compressed-tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.schemes.compressed_tensors import PackedInts, PlainInts
from mrs.architecture.weight_scheme import Layout
from mrs.load.schemes.affine_blocks import affine_blocks, group_order, unpack_stream
from mrs.load.schemes.part_reader import PartReader

_ALIGNED = 32


def unpack_packed(
    scheme: PackedInts, layout: Layout, parts: PartReader, rows: range, columns: int
) -> Tensor:
    codes = unpack_stream(parts.rows("codes", rows), layout.bits, columns)
    order = group_order(parts, layout, columns)
    codes = codes if order is None else codes[:, order]
    scales = scale_rows(parts, layout, rows)
    zeros = torch.full_like(scales, 1 << layout.bits - 1)
    if "zeros" in parts:
        zeros = _zero_rows(parts, layout, rows)
    return affine_blocks(layout, codes, scales, zeros=zeros)


def unpack_plain(
    scheme: PlainInts, layout: Layout, parts: PartReader, rows: range, columns: int
) -> Tensor:
    codes = parts.rows("codes", rows).view(torch.uint8) ^ 0x80
    scales = scale_rows(parts, layout, rows)
    zeros = torch.full_like(scales, 128)
    if "zeros" in parts:
        zeros += scale_rows(parts, layout, rows, "zeros")
    return affine_blocks(layout, codes, scales, zeros=zeros)


def scale_rows(parts: PartReader, layout: Layout, rows: range, role: str = "scales") -> Tensor:
    """Scales of some rows in float32 (R, groups), from one scale, or those of each row."""
    shape = parts.shape(role)
    if shape[:1] != (layout.rows,) and len(shape) < 3:
        return parts.floats(role).reshape(1, 1).expand(len(rows), 1)
    width = shape[-1] if len(shape) > 1 else 1
    return parts.rows(role, rows, width).float()


def _zero_rows(parts: PartReader, layout: Layout, rows: range) -> Tensor:
    first, bits = rows.start // _ALIGNED * _ALIGNED, layout.bits
    words = range(first * bits // 32, -(-rows.stop * bits // 32))
    zeros = unpack_stream(parts.rows("zeros", words).T, bits, rows.stop - first)
    return zeros[:, rows.start - first :].T.float()
