"""Read rows or columns of the tensors that one quantized weight consists of."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from mrs.quantization.gguf.unquantized import DTYPES
from mrs.quantization.workspace import STRIP_BYTES
from mrs.source.checkpoint import TensorInfo
from mrs.source.weights import Weights
from mrs.weights.weight_scheme import PackedWeight

#: Types of codes whose bits are all that matters.
_BITS = {"U32": torch.int32, "F8_E8M0": torch.uint8, "F8_E4M3": torch.uint8}


class FilePartReader:
    """A `PartReader` of a checkpoint's files."""

    def __init__(self, files: Weights, packed: PackedWeight) -> None:
        self._files = files
        self._packed = packed
        self._roles = dict(packed.tensors)
        self._strips: dict[str, tuple[range, Tensor]] = {}

    def __contains__(self, role: str) -> bool:
        return role in self._roles

    def name(self, role: str) -> str:
        return self._roles[role]

    def shape(self, role: str) -> tuple[int, ...]:
        return self._info(role).shape

    def whole(self, role: str) -> Tensor:
        info = self._info(role)
        return self._values(info, 0, prod(info.shape)).view(info.shape)

    def rows(self, role: str, rows: range, width: int = 0) -> Tensor:
        info = self._info(role)
        width = width or info.shape[-1]
        return self._values(info, rows.start * width, len(rows) * width).view(len(rows), width)

    def columns(self, role: str, columns: range) -> Tensor:
        """Of a part's columns, a strip of up to STRIP_BYTES is read and kept for the next call, so
        that the reads are long.
        """
        span, strip = self._strips.get(role, (range(0), torch.empty(0)))
        if columns.start not in span or columns[-1] not in span:
            span, strip = self._strips[role] = self._strip(role, columns)
        return strip[:, columns.start - span.start : columns.stop - span.start]

    def _strip(self, role: str, columns: range) -> tuple[range, Tensor]:
        """At least these columns of a part, and more of the following ones if they are narrow."""
        info = self._info(role)
        height, width = info.shape
        size = info.format.block_bytes
        count = max(STRIP_BYTES // (height * size), len(columns))
        if count >= width:
            return range(width), self.whole(role)
        span = range(columns.start, min(columns.start + count, width))
        table = torch.empty(height, len(span) * size, dtype=torch.uint8)
        starts = ((row * width + span.start) * size for row in range(height))
        self._files.read_rows_into(table.numpy(), info, starts)
        return span, table.view(_dtype(info))

    def bytes(self, role: str, span: range) -> Tensor:
        data = torch.empty(len(span), dtype=torch.uint8)
        self._files.read_into(data.numpy().data, self._info(role), span.start)
        return data

    def floats(self, role: str) -> Tensor:
        return self.whole(role).float()

    def _info(self, role: str) -> TensorInfo:
        return self._files.checkpoint.tensors[self._roles[role]]

    def _values(self, info: TensorInfo, first: int, count: int) -> Tensor:
        size = info.format.block_bytes
        data = torch.empty(count * size, dtype=torch.uint8)
        self._files.read_into(data.numpy().data, info, first * size)
        return data.view(_dtype(info))


def _dtype(info: TensorInfo) -> torch.dtype:
    return _BITS.get(info.format.name) or DTYPES[info.format.name]
