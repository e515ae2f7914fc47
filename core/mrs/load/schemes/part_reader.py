"""Read rows or columns of the tensors that one quantized weight consists of."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from mrs.architecture.weight_scheme import PackedWeight
from mrs.quants.unquantized import DTYPES
from mrs.source.checkpoint import TensorInfo
from mrs.source.weights import Weights

#: Types of codes whose bits are all that matters.
_BITS = {"U32": torch.int32, "F8_E8M0": torch.uint8, "F8_E4M3": torch.uint8}


class PartReader:
    """The parts of one weight by role; results are new tensors of the part's type."""

    def __init__(self, files: Weights, packed: PackedWeight) -> None:
        self._files = files
        self._packed = packed
        self._roles = dict(packed.tensors)

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
        """Adjacent rows of a part whose rows have `width` values, by default its last dimension."""
        info = self._info(role)
        width = width or info.shape[-1]
        return self._values(info, rows.start * width, len(rows) * width).view(len(rows), width)

    def columns(self, role: str, columns: range) -> Tensor:
        """Adjacent columns of a part: (rows, columns)."""
        info = self._info(role)
        height, width = info.shape
        size = info.format.block_bytes
        table = torch.empty(height, len(columns) * size, dtype=torch.uint8)
        for row, buffer in enumerate(table.numpy()):
            self._files.read_into(buffer.data, info, (row * width + columns.start) * size)
        return table.view(_dtype(info))

    def bytes(self, role: str, span: range) -> Tensor:
        """Some bytes of a part of any type, uint8 (bytes,)."""
        data = torch.empty(len(span), dtype=torch.uint8)
        self._files.read_into(data.numpy().data, self._info(role), span.start)
        return data

    def floats(self, role: str) -> Tensor:
        """The whole part in float32."""
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
