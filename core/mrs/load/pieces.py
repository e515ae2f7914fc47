"""The rows that a parameter takes from a file."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from mrs.families.spec import Piece
from mrs.formats import FORMATS, Format
from mrs.load.read import TORCH_DTYPES, file_rows
from mrs.load.scaled import scaled_rows
from mrs.quants import decode
from mrs.source.checkpoint import TensorInfo
from mrs.source.weights import Weights


def piece_rows(files: Weights, piece: Piece, columns: int) -> tuple[Tensor, Format]:
    """The rows of a piece, uint8 (rows, row_bytes), and their format.

    They are as they lie in the file, or in float32 where the file has them in a way that no
    format describes: transposed blocks, or numbers without their scales.
    """
    info = files.checkpoint.tensors[piece.tensor]
    if piece.scales is not None:
        return _as_bytes(scaled_rows(files, piece, piece.scales, columns))
    if piece.transposed:
        return _as_bytes(_transposed_rows(files, info, columns, piece.rows))
    return file_rows(files, info, columns, piece.rows), info.format


def _as_bytes(numbers: Tensor) -> tuple[Tensor, Format]:
    name = next(name for name, dtype in TORCH_DTYPES.items() if dtype == numbers.dtype)
    return numbers.contiguous().view(torch.uint8), FORMATS[name]


def _transposed_rows(files: Weights, info: TensorInfo, columns: int, rows: range | None) -> Tensor:
    """Rows of a stack of matrices (…, columns, height), each of them transposed."""
    height = info.shape[-1]
    first = 0 if rows is None else rows.start // height
    last = prod(info.shape[:-2]) if rows is None else -(-rows.stop // height)
    stored = file_rows(files, info, height, range(first * columns, last * columns))
    numbers = decode(stored, info.format, TORCH_DTYPES.get(info.format.name, torch.float32))
    turned = numbers.view(-1, columns, height).transpose(1, 2).reshape(-1, columns)
    if rows is None:
        return turned
    skipped = first * height
    return turned[rows.start - skipped : rows.stop - skipped : rows.step]
