"""Read the rows of a parameter from the files of a model, in chunks of bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mrs.errors import NotReadable
from mrs.formats import FORMATS, Format
from mrs.kernels.packed_layout import GROUP_ROWS
from mrs.load.chunk_memory import ChunkMemory, OneBuffer
from mrs.load.part_reader import FilePartReader
from mrs.quantization.gguf import decode
from mrs.quantization.gguf.affine_blocks import group_order
from mrs.quantization.workspace import SCALED_CHUNK_WEIGHTS, load_chunk_weights
from mrs.source.checkpoint import TensorInfo
from mrs.source.weights import Weights
from mrs.weights.binding import Piece
from mrs.weights.weight_scheme import PackedWeight

#: The torch dtype of each plain format.
TORCH_DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}


class TensorReader:
    """Reads rows of a checkpoint's tensors into memory that all chunks share."""

    def __init__(self, files: Weights, memory: ChunkMemory | None = None) -> None:
        self._files = files
        self._memory = memory or OneBuffer()

    def chunks(
        self, piece: Piece, columns: int, *, permutes: bool = False
    ) -> Iterator[tuple[Tensor, Format]]:
        """The rows of a piece in order, chunk by chunk: uint8 (R, row_bytes) and their format.

        A chunk has about `load_chunk_weights` weights and is valid until the next chunk. Rows
        have the file's format, except that transposed tensors come as floats, and weights that
        several tensors store in the format of their layout. If `permutes`, columns of a permuted
        layout are sorted by group. Raises NotReadable.
        """
        if piece.paired_heads:
            yield self._paired_rows(piece, columns)
            return
        if piece.packed is not None:
            for blocks, format in self._unpacked(piece.packed, piece.rows, columns, permutes):
                yield _some_columns(blocks, format, piece.columns), format
            return
        info = self._files.checkpoint.tensors[piece.tensor]
        rows = piece.rows
        if rows is None:
            rows = range(info.size_bytes // _row_bytes(info, columns))
        weights = load_chunk_weights(torch.get_num_threads())
        for chunk in _chunks(rows, columns, weights):
            if piece.transposed:
                yield _as_bytes(self._transposed_rows(info, piece.columns, columns, chunk))
            elif piece.columns is not None:
                yield self._parts_of_rows(info, piece.columns, chunk), info.format
            else:
                yield self._stored_rows(info, _row_bytes(info, columns), chunk), info.format

    def group_order(self, pieces: Sequence[Piece], columns: int) -> Tensor:
        """The columns of a permuted matrix as its file numbers them, int64 (columns,).

        Raises NotReadable if the pieces of the matrix differ in it.
        """
        orders = []
        for packed in {piece.packed for piece in pieces}:
            assert packed is not None
            layout = packed.layout(self._files.checkpoint.tensors, columns)
            orders.append(group_order(FilePartReader(self._files, packed), layout, columns))
        if orders[0] is None or len(orders) > 1:
            raise NotReadable(f"the order of columns of {pieces[0].tensor!r} is not unique")
        return orders[0]

    def _unpacked(
        self, packed: PackedWeight, rows: range | None, columns: int, permutes: bool
    ) -> Iterator[tuple[Tensor, Format]]:
        layout = packed.layout(self._files.checkpoint.tensors, columns)
        columns = packed.all_columns or columns
        parts = FilePartReader(self._files, packed)
        order = None if permutes else group_order(parts, layout, columns)
        for chunk in _chunks(rows or range(layout.rows), columns, SCALED_CHUNK_WEIGHTS):
            span = range(chunk.start, chunk[-1] + 1)
            blocks = packed.scheme.unpack(layout, parts, span, columns)[:: chunk.step]
            if order is None:
                yield blocks, layout.format
            else:
                values = decode(blocks, layout.format)
                yield _as_bytes(torch.empty_like(values).index_copy_(1, order, values))

    def _paired_rows(self, piece: Piece, columns: int) -> tuple[Tensor, Format]:
        """All rows of a piece whose heads have the two values of each rotary pair apart."""
        chunks, stored = [], FORMATS["F32"]
        for chunk, stored in self.chunks(piece._replace(paired_heads=0), columns):  # noqa: B007
            chunks.append(chunk.clone())  # all chunks use the same memory
        rows = torch.cat(chunks)
        halves = rows.view(piece.paired_heads, 2, -1, rows.shape[1])
        return halves.transpose(1, 2).reshape(rows.shape), stored

    def _table(self, rows: int, row_bytes: int) -> Tensor:
        """Memory for a chunk as uint8 (rows, row_bytes), with undefined contents."""
        return self._memory.take(rows * row_bytes).view(rows, row_bytes)

    def _stored_rows(self, info: TensorInfo, row_bytes: int, rows: range) -> Tensor:
        """Rows in the file's format: uint8 (rows, row_bytes)."""
        table = self._table(rows[-1] + 1 - rows.start, row_bytes)
        self._files.read_into(table.numpy().data.cast("B"), info, rows.start * row_bytes)
        return table[:: rows.step]

    def _parts_of_rows(self, info: TensorInfo, columns: Sequence[range], rows: range) -> Tensor:
        """Some columns of rows in the file's format: uint8 (rows, row_bytes)."""
        row_bytes, parts = _row_bytes(info, info.shape[-1]), []
        for each in columns:
            start_bytes, end_bytes = (_row_bytes(info, n) for n in (each.start, each.stop))
            table = self._table(len(rows), end_bytes - start_bytes)
            starts = (row * row_bytes + start_bytes for row in rows)
            self._files.read_rows_into(table.numpy(), info, starts)
            parts.append(table if len(columns) == 1 else table.clone())
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _transposed_rows(
        self, info: TensorInfo, some: Sequence[range] | None, columns: int, rows: range
    ) -> Tensor:
        """Rows of a stack of stored matrices (…, width, height), each of them transposed.

        `columns` columns, which are `some` of the stored width or all. `count` rows of the result
        are `count` stored columns: for these, one range of every stored row is read.
        """
        width, height = info.shape[-2:]
        wanted = list(itertools.chain(*(some or (range(columns),))))
        dtype = TORCH_DTYPES.get(info.format.name, torch.float32)
        result = torch.empty(len(rows), columns, dtype=dtype)
        done = 0
        while done < len(rows):
            matrix, first = divmod(rows[done], height)
            count = min(len(range(first, height, rows.step)), len(rows) - done)
            span = (count - 1) * rows.step + 1
            table = self._table(columns, info.format.size_bytes((span,)))
            for column, buffer in zip(wanted, table.numpy(), strict=True):
                start = info.format.size_bytes(((matrix * width + column) * height + first,))
                self._files.read_into(buffer.data, info, start)
            result[done : done + count] = decode(table, info.format, dtype).T[:: rows.step]
            done += count
        return result


def _chunks(rows: range, columns: int, weights: int) -> Iterator[range]:
    """Consecutive slices of `rows`. Rows that a step skips are read, too, and count."""
    groups = max(weights // (columns * rows.step) // GROUP_ROWS, 1)
    count = groups * GROUP_ROWS  # packed matrices interleave groups of rows
    for first in range(0, len(rows), count):
        yield rows[first : first + count]


def _some_columns(rows: Tensor, format: Format, columns: Sequence[range] | None) -> Tensor:
    """Whole blocks of rows, uint8 (R, row_bytes); all of them without `columns`."""
    if columns is None:
        return rows
    spans = [
        (format.size_bytes((each.start,)), format.size_bytes((each.stop,))) for each in columns
    ]
    return torch.cat([rows[:, start:end] for start, end in spans], dim=1)


def _row_bytes(info: TensorInfo, columns: int) -> int:
    return info.format.size_bytes((columns,))


def _as_bytes(values: Tensor) -> tuple[Tensor, Format]:
    """The bytes of a float tensor, and its format."""
    name = next(name for name, dtype in TORCH_DTYPES.items() if dtype == values.dtype)
    return values.contiguous().view(torch.uint8), FORMATS[name]
