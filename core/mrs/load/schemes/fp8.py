"""Rows of 8-bit floats with a scale for the tensor, for each row, or for each tile."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.schemes.fp8 import Fp8
from mrs.architecture.weight_scheme import Layout
from mrs.load.schemes.compressed_tensors import scale_rows
from mrs.load.schemes.part_reader import PartReader
from mrs.quants.bits import bytes_of
from mrs.quants.grouped import fp8_blocks


def unpack(scheme: Fp8, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
    codes = parts.rows("codes", rows)
    if scheme.tile is None:
        scales = scale_rows(parts, layout, rows)
    else:
        height = scheme.tile[0]
        tiles = range(rows.start // height, -(-rows.stop // height))
        by_row = torch.arange(rows.start, rows.stop) // height - tiles.start
        scales = parts.rows("scales", tiles).float()[by_row]
    each = layout.format.block_elements
    scales = scales[:, torch.arange(0, columns, each) // layout.group]
    if not layout.format.is_quantized:
        return bytes_of(codes.view(torch.float8_e4m3fn).float() * scales)
    return fp8_blocks(codes.reshape(-1, each), scales.reshape(-1)).view(len(rows), -1)
