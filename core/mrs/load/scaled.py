"""Decode numbers whose scales lie in a tensor of their own."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from mrs.families.spec import Piece, Scales
from mrs.load.read import file_rows
from mrs.quants import decode
from mrs.quants.float8 import decode_float8_tiles
from mrs.quants.fp4 import decode_mxfp4_pairs
from mrs.source.weights import Weights


def scaled_rows(files: Weights, piece: Piece, scales: Scales, columns: int) -> Tensor:
    """A piece's rows, (rows, columns) in float32."""
    info = files.checkpoint.tensors[piece.tensor]
    if info.format.name == "U8":
        return _fp4_rows(files, piece, scales, columns)
    total = prod(info.shape) // columns
    rows = piece.rows or range(total)
    # Tiles are decoded whole, and rows may begin inside one.
    height = scales.tile[0]
    tiles = range(rows.start // height, -(-rows.stop // height))
    first, last = tiles.start * height, min(tiles.stop * height, total)
    weights = decode(
        file_rows(files, info, columns, range(first, last)), info.format, torch.float8_e4m3fn
    )
    scales_info = files.checkpoint.tensors[scales.tensor]
    factors = file_rows(files, scales_info, -(-columns // scales.tile[1]), tiles)
    numbers = decode_float8_tiles(
        weights, decode(factors, scales_info.format), scales.tile, torch.float32
    )
    return numbers[rows.start - first : rows.stop - first : rows.step]


def _fp4_rows(files: Weights, piece: Piece, scales: Scales, columns: int) -> Tensor:
    """gpt-oss's blocks: two numbers a byte, one scale for 32."""
    info = files.checkpoint.tensors[piece.tensor]
    scales_info = files.checkpoint.tensors[scales.tensor]
    blocks = file_rows(files, info, columns // 2, piece.rows)
    factors = file_rows(files, scales_info, columns // scales.tile[1], piece.rows)
    numbers = decode_mxfp4_pairs(blocks.reshape(len(blocks), -1, 16), factors, torch.float32)
    return numbers.view(-1, columns)
