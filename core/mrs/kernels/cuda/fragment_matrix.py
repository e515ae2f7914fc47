"""A quantized matrix in fragment order, and its products with few tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.cuda.fragments import FRAGMENT_FORMATS, TILE_COLUMNS, TILE_ROWS
from mrs.kernels.triton.bit_planes import BlockFields, PlaneLayout


class FragmentMatrix:
    """A (rows, columns) weight in fragment order, in as many bytes as in the file.

    Rows are a multiple of 16.
    """

    def __init__(
        self, name: str, layout: PlaneLayout, rows: int, columns: int, device: torch.device
    ) -> None:
        """Allocate the weight, for `fill` to write. ValueError for a size that does not fit."""
        self.format = FRAGMENT_FORMATS[name]
        if rows % TILE_ROWS or columns % self.format.block:
            raise ValueError(
                f"{rows} x {columns} weights are not whole tiles of {TILE_ROWS} rows and blocks "
                f"of {self.format.block} columns"
            )
        self.name, self._layout = name, layout
        self.shape = (rows, columns)
        tile_bytes = columns // self.format.block * self.format.tile_row_bytes
        self.data = torch.empty(rows // TILE_ROWS, tile_bytes, dtype=torch.uint8, device=device)
        self.device = self.data.device

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def fill(self, fields: BlockFields, first_row: int = 0) -> None:
        """Write the fields of whole tiles from row `first_row` on. ValueError for wrong shapes."""
        count, columns = fields.codes.shape
        last = first_row + count
        if columns != self.shape[1] or last > self.shape[0] or count % TILE_ROWS or first_row % 16:
            raise ValueError(
                f"rows {tuple(fields.codes.shape)} from row {first_row} on do not fit {self.shape}"
            )
        self.data[first_row // TILE_ROWS : last // TILE_ROWS] = self.format.pack(fields)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The values of the rows `ids` (N,), as (N, columns)."""
        fields = self.format.unpack(self.data[ids // TILE_ROWS])
        own = torch.arange(len(ids), device=ids.device) * TILE_ROWS + ids % TILE_ROWS
        chosen = BlockFields._make(None if each is None else each[own] for each in fields)
        return _values(chosen, self._layout).to(dtype)


def _values(fields: BlockFields, layout: PlaneLayout) -> Tensor:
    """The weights float32 (N, columns) of the fields of N rows."""
    columns = fields.codes.shape[1]
    scale = fields.d.float()
    base = None if fields.base is None else fields.base.float()
    if fields.scales is not None:
        scale = _repeated(scale, fields.scales.shape[1])
        scale = scale * (fields.scales.float() - layout.scale_zero)
    if fields.minima is not None and base is not None:
        base = _repeated(base, fields.minima.shape[1]) * fields.minima.float()
    weights = _repeated(scale, columns) * (fields.codes.float() - layout.code_zero)
    return weights if base is None else weights + _repeated(base, columns)


def _repeated(values: Tensor, columns: int) -> Tensor:
    return values.repeat_interleave(columns // values.shape[1], 1)


def can_multiply(name: str, rows: int, columns: int) -> bool:
    """Whether the kernels multiply a matrix of a format and size: of blocks, or BF16."""
    if name == "BF16":
        return rows % TILE_ROWS == 0 and columns % 8 == 0
    found = FRAGMENT_FORMATS.get(name)
    return found is not None and rows % TILE_ROWS == 0 and columns % found.block == 0


def tiles_of(columns: int) -> int:
    """Tiles of 256 columns, the last of which may have fewer."""
    return -(-columns // TILE_COLUMNS)
