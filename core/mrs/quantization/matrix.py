"""Weight matrices in each form of storage: how they multiply."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.formats import Format
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.quantization.gguf import decode
from mrs.quantization.workspace import tile_rows


class Matrix(Protocol):
    """A (rows, columns) weight: multiplies activations, and looks up rows as an embedding."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int:
        """Bytes of the weight on its device."""

    @property
    def device(self) -> torch.device: ...

    def matmul(self, x: Tensor) -> Tensor:
        """x (N, columns) times the transposed weight: (N, rows), in x's dtype."""

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows `ids` (N,) as (N, columns)."""


class DenseMatrix:
    """A weight stored as an ordinary floating-point tensor."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.device = weight.device

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def matmul(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight).to(x.dtype)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self.weight[ids].to(dtype)


class BlockMatrix:
    """A quantized weight stored in the file's own blocks, in any format, on any device.

    Every product decodes the weight, a tile of rows at a time. That is slower than kernels which
    multiply blocks directly; this class serves devices without such kernels.
    """

    def __init__(self, format: Format, rows: int, columns: int, device: torch.device) -> None:
        """Allocate the weight, for `fill` to write. Raises Unsupported if no decoder exists."""
        row_bytes = format.size_bytes((columns,))
        decode(torch.zeros(1, format.block_bytes, dtype=torch.uint8), format)
        self._format = format
        self._blocks = torch.empty(rows, row_bytes, dtype=torch.uint8, device=device)
        self.device = self._blocks.device
        self.shape = (rows, columns)

    @property
    def nbytes(self) -> int:
        return self._blocks.nbytes

    def fill(self, blocks: Tensor, first_row: int = 0) -> None:
        """Write rows of blocks, uint8 (R, row_bytes), from row `first_row` on."""
        self._blocks[first_row : first_row + len(blocks)] = blocks

    def matmul(self, x: Tensor) -> Tensor:
        rows, columns = self.shape
        out = torch.empty(len(x), rows, dtype=x.dtype, device=x.device)
        some = tile_rows(columns, on_cpu=x.device.type == "cpu")
        for first in range(0, rows, some):
            tile = decode(self._blocks[first : first + some], self._format, x.dtype)
            out[:, first : first + some] = F.linear(x, tile)
        return out

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return decode(self._blocks[ids], self._format, dtype)


class PermutedMatrix:
    """A weight whose columns are in another order than the activations; `order` (columns,)."""

    def __init__(self, matrix: Matrix, order: Tensor) -> None:
        self._matrix = matrix
        self._order = order.to(matrix.device, torch.int32)
        self.device = matrix.device
        self.shape = matrix.shape

    @property
    def nbytes(self) -> int:
        return self._matrix.nbytes + self._order.nbytes

    def matmul(self, x: Tensor) -> Tensor:
        return self._matrix.matmul(x.index_select(1, self._order))

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        permuted = self._matrix.rows(ids, dtype)
        return torch.empty_like(permuted).index_copy_(1, self._order.long(), permuted)


def permuted(matrix: Matrix, order: Tensor) -> Matrix:
    """A weight for activations whose column `order[i]` is multiplied with its column i."""
    if not isinstance(matrix, PackedMatrix):
        return PermutedMatrix(matrix, order)
    matrix.permute(order)
    return matrix
