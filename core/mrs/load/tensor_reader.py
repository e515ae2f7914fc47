"""Read the rows of a parameter from the files of a model, in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from mrs.architecture.binding import Piece, Scales
from mrs.formats import FORMATS, Format
from mrs.quants import decode
from mrs.quants.float8 import decode_float8_tiles
from mrs.quants.fp4 import decode_mxfp4_pairs
from mrs.sizes.packed_layout import GROUP_ROWS
from mrs.sizes.quantization import SCALED_CHUNK_WEIGHTS, load_chunk_weights
from mrs.source.checkpoint import TensorInfo
from mrs.source.weights import Weights

#: The torch dtype of each plain format.
TORCH_DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}


class TensorReader:
    """Reads rows of a checkpoint's tensors into one buffer, which all chunks share.

    Separate memory for each chunk would fragment the heap, which then could not shrink.
    """

    def __init__(self, files: Weights) -> None:
        self._files = files
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def chunks(self, piece: Piece, columns: int) -> Iterator[tuple[Tensor, Format]]:
        """The rows of a piece in order, chunk by chunk: uint8 (R, row_bytes) and their format.

        A chunk has about `load_chunk_weights` weights and is valid until the next chunk. Rows
        have the file's format, except that transposed tensors come as floats, and tensors with
        separate scales as float32. Raises NotReadable.
        """
        info = self._files.checkpoint.tensors[piece.tensor]
        rows = piece.rows
        if rows is None:
            rows = range(info.size_bytes // _row_bytes(info, columns))
        weights = load_chunk_weights(torch.get_num_threads())
        if piece.scales is not None:
            weights = min(weights, SCALED_CHUNK_WEIGHTS)
        for chunk in _chunks(rows, columns, weights):
            if piece.scales is not None:
                yield _as_bytes(self._scaled_rows(piece, piece.scales, columns, chunk))
            elif piece.transposed:
                yield _as_bytes(self._transposed_rows(info, columns, chunk))
            else:
                yield self._stored_rows(info, _row_bytes(info, columns), chunk), info.format

    def _table(self, rows: int, row_bytes: int) -> Tensor:
        """The buffer as uint8 (rows, row_bytes), with undefined contents."""
        if self._buffer.nbytes < rows * row_bytes:
            self._buffer = torch.empty(rows * row_bytes, dtype=torch.uint8)
        return self._buffer[: rows * row_bytes].view(rows, row_bytes)

    def _stored_rows(self, info: TensorInfo, row_bytes: int, rows: range) -> Tensor:
        """Rows in the file's format: uint8 (rows, row_bytes)."""
        table = self._table(rows[-1] + 1 - rows.start, row_bytes)
        self._files.read_into(table.numpy().data.cast("B"), info, rows.start * row_bytes)
        return table[:: rows.step]

    def _transposed_rows(self, info: TensorInfo, columns: int, rows: range) -> Tensor:
        """Rows of a stack of stored matrices (…, columns, height), each of them transposed.

        `count` rows of the result are `count` stored columns: for these, one range of every stored
        row is read.
        """
        height = info.shape[-1]
        dtype = TORCH_DTYPES.get(info.format.name, torch.float32)
        result = torch.empty(len(rows), columns, dtype=dtype)
        done = 0
        while done < len(rows):
            matrix, first = divmod(rows[done], height)
            count = min(len(range(first, height, rows.step)), len(rows) - done)
            span = (count - 1) * rows.step + 1
            table = self._table(columns, info.format.size_bytes((span,)))
            for column, buffer in enumerate(table.numpy()):
                start = info.format.size_bytes(((matrix * columns + column) * height + first,))
                self._files.read_into(buffer.data, info, start)
            result[done : done + count] = decode(table, info.format, dtype).T[:: rows.step]
            done += count
        return result

    def _scaled_rows(self, piece: Piece, scales: Scales, columns: int, rows: range) -> Tensor:
        """Rows times their scales, which are in another tensor: (rows, columns) in float32."""
        info = self._files.checkpoint.tensors[piece.tensor]
        scales_info = self._files.checkpoint.tensors[scales.tensor]
        scale_columns = -(-columns // scales.tile[1])
        scale_bytes = scales_info.format.size_bytes((scale_columns,))
        if info.format.name == "U8":
            factors = self._stored_rows(scales_info, scale_bytes, rows).clone()
            blocks = self._stored_rows(info, columns // 2, rows).reshape(len(rows), -1, 16)
            return decode_mxfp4_pairs(blocks, factors, torch.float32).view(-1, columns)
        # Tiles are decoded as a whole, but `rows` may begin inside a tile.
        height, total = scales.tile[0], prod(info.shape) // columns
        tiles = range(rows.start // height, -(-(rows[-1] + 1) // height))
        first, last = tiles.start * height, min(tiles.stop * height, total)
        factors = self._stored_rows(scales_info, scale_bytes, tiles).clone()
        stored = self._stored_rows(info, _row_bytes(info, columns), range(first, last))
        values = decode_float8_tiles(
            decode(stored, info.format, torch.float8_e4m3fn),
            decode(factors, scales_info.format),
            scales.tile,
            torch.float32,
        )
        return values[rows.start - first : rows[-1] + 1 - first : rows.step]


def _chunks(rows: range, columns: int, weights: int) -> Iterator[range]:
    """Consecutive slices of `rows`. Rows that a step skips are read, too, and count."""
    groups = max(weights // (columns * rows.step) // GROUP_ROWS, 1)
    count = groups * GROUP_ROWS  # packed matrices interleave groups of rows
    for first in range(0, len(rows), count):
        yield rows[first : first + count]


def _row_bytes(info: TensorInfo, columns: int) -> int:
    """Bytes of a row of `columns` weights. In gpt-oss's U8 blocks a byte has two weights."""
    return columns // 2 if info.format.name == "U8" else info.format.size_bytes((columns,))


def _as_bytes(values: Tensor) -> tuple[Tensor, Format]:
    """The bytes of a float tensor, and its format."""
    name = next(name for name, dtype in TORCH_DTYPES.items() if dtype == values.dtype)
    return values.contiguous().view(torch.uint8), FORMATS[name]
