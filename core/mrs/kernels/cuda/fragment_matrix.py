"""A quantized matrix in fragment order on an NVIDIA GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.cuda.decode import decode_chosen, decode_panel
from mrs.kernels.cuda.fragments import FRAGMENT_FORMATS
from mrs.kernels.cuda.launcher import TYPES, Launcher, device_launcher
from mrs.kernels.cuda.products import multiply
from mrs.kernels.triton.bit_planes import BlockFields
from mrs.kernels.workspace.fragments import MOST_TOKENS, TILE_ROWS, can_multiply, panel_rows


class FragmentMatrix:
    """A (rows, columns) weight in fragment order, in as many bytes as in the file.

    Up to MOST_TOKENS tokens are multiplied by a kernel of its own, more by torch with panels of
    decoded rows. Rows are a multiple of 16.
    """

    def __init__(
        self,
        name: str,
        rows: int,
        columns: int,
        device: torch.device,
        launcher: Launcher | None = None,
    ) -> None:
        """Allocate the weight, for `fill` to write. ValueError for a size that does not fit.

        Without a launcher it is that of the device.
        """
        self.format = FRAGMENT_FORMATS[name]
        if not can_multiply(name, rows, columns):
            raise ValueError(
                f"{rows} x {columns} weights are not whole tiles of {TILE_ROWS} rows and blocks "
                f"of {self.format.block} columns"
            )
        self.name, self.shape, self._launcher = name, (rows, columns), launcher
        tile_bytes = columns // self.format.block * self.format.tile_row_bytes
        self.data = torch.empty(rows // TILE_ROWS, tile_bytes, dtype=torch.uint8, device=device)
        self.device = self.data.device

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def launcher(self) -> Launcher:
        return self._launcher or device_launcher(self.device)

    def fill(self, fields: BlockFields, first_row: int = 0) -> None:
        """Write the fields of whole tiles from row `first_row` on. ValueError for wrong shapes."""
        count, columns = fields.codes.shape
        last = first_row + count
        is_whole = count % TILE_ROWS == 0 and first_row % TILE_ROWS == 0
        if columns != self.shape[1] or last > self.shape[0] or not is_whole:
            raise ValueError(
                f"rows {tuple(fields.codes.shape)} from row {first_row} on do not fit {self.shape}"
            )
        self.data[first_row // TILE_ROWS : last // TILE_ROWS] = self.format.pack(fields)

    def matmul(self, x: Tensor) -> Tensor:
        """x (N, columns) times the transposed weight: (N, rows), in x's dtype."""
        rows, columns = self.shape
        if x.shape[1] != columns:
            raise ValueError(f"x has {x.shape[1]} columns, the matrix {columns}")
        if x.dtype not in TYPES:
            return self.matmul(x.float()).to(x.dtype)
        if len(x) <= MOST_TOKENS:
            return multiply(x, [self], self.launcher)
        out = torch.empty(len(x), rows, dtype=x.dtype, device=x.device)
        self.multiply_into(x, out)
        return out

    def multiply_into(self, x: Tensor, out: Tensor) -> None:
        """out (N, rows) = x (N, columns) times the transposed weight, by panels of decoded rows.

        Both have the same type; `out` may be some columns of a larger tensor.
        """
        rows, columns = self.shape
        some = panel_rows(rows, columns)
        panel = torch.empty(some, columns, dtype=x.dtype, device=x.device)
        for first in range(0, rows, some):
            part = panel[: rows - first]
            decode_panel(self.name, self.data, first, part, self.launcher)
            torch.mm(x, part.T, out=out[:, first : first + some])

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The values of the rows `ids` (N,), as (N, columns)."""
        out = torch.empty(len(ids), self.shape[1], dtype=dtype, device=self.device)
        decode_chosen(self.name, self.data, ids, out, self.launcher)
        return out
