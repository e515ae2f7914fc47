"""Add LoRA adapters to the rows of a weight while it is loaded, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.formats import FORMATS, Format
from mrs.load.tensor_reader import TensorReader
from mrs.quantization.gguf import decode
from mrs.weights.binding import LowRankUpdate, Parameter, Piece


class MergedRows:
    """The rows of a parameter in order, with all of its updates."""

    def __init__(self, parameter: Parameter, reader: TensorReader) -> None:
        """Read the adapters' matrices. Raises NotReadable."""
        self._updates = [_Matrices(update, parameter, reader) for update in parameter.updates]
        self._row = 0

    def add(self, rows: Tensor, stored: Format) -> tuple[Tensor, Format]:
        """The next rows, uint8 (R, row_bytes) of the format `stored`, with all updates."""
        if not self._updates:
            return rows, stored
        values = decode(rows, stored).clone()
        span = slice(self._row, self._row + len(values))
        for update in self._updates:
            update.add_to(values, span)
        self._row = span.stop
        return values.view(torch.uint8), FORMATS["F32"]


class _Matrices:
    """One update's matrices in float32, multiplied by its scale."""

    def __init__(self, update: LowRankUpdate, parameter: Parameter, reader: TensorReader) -> None:
        self._down = _values(reader, update.down, parameter.columns)
        self._up = _values(reader, update.up, update.rank).mul_(update.scale)
        self._magnitude = _values(reader, update.magnitude, 1) if update.magnitude else None

    def add_to(self, values: Tensor, span: slice) -> None:
        """Add the rows `span` of the update to `values` (R, columns)."""
        values.addmm_(self._up[span], self._down)
        if self._magnitude is not None:
            norm = torch.linalg.vector_norm(values, dim=1, keepdim=True)
            values.mul_(self._magnitude[span] / norm)


def _values(reader: TensorReader, pieces: Sequence[Piece], columns: int) -> Tensor:
    """All rows of these pieces in float32: (rows, columns)."""
    chunks = [
        decode(rows, stored).clone()
        for piece in pieces
        for rows, stored in reader.chunks(piece, columns)
    ]
    return torch.cat(chunks)
