"""A quantized matrix on a GPU, multiplied by the Triton kernels."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from mrs.kernels.triton.bit_planes import (
    BlockFields,
    PlaneLayout,
    allocate,
    decode_rows,
    write_planes,
)

#: Products of more tokens than this are computed in tiles, by the matrix units of the GPU.
FEW_TOKENS = 8

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

#: The bits of float32 1.0. The kernels get them as an argument: for a constant that it knows, the
#: compiler would emit one more instruction for each weight.
ONE = 0x3F800000

#: Rows that a program of the few-token kernel computes, and words that it reads of each at a time:
#: 16 bytes for each thread at 4 bits. With other sizes Triton moves values between threads.
FEW_ROWS, FEW_WORDS = 2, 128


class PlaneMatrix:
    """A (rows, columns) weight stored as bit planes, with as many bytes as in the file."""

    def __init__(self, layout: PlaneLayout, rows: int, columns: int, device: torch.device) -> None:
        """Allocate the weight, for `fill` to write."""
        self.layout = layout.for_columns(columns)
        self._data, self.planes = allocate(self.layout, rows, columns, device)
        self.shape = (rows, columns)
        self.device = self._data.device

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    def data_ptr(self) -> int:
        """The address of all planes, which begin there in the same order for the same shape."""
        return self._data.data_ptr()

    def fill(self, fields: BlockFields, first_row: int = 0) -> None:
        """Write the fields of some rows from row `first_row` on. ValueError for wrong shapes."""
        count = len(fields.codes)
        if fields.codes.shape[1] != self.shape[1] or first_row + count > self.shape[0]:
            raise ValueError(
                f"rows {tuple(fields.codes.shape)} from row {first_row} on do not fit {self.shape}"
            )
        write_planes(self.layout, self.planes, fields, first_row)

    def matmul(self, x: Tensor) -> Tensor:
        """x (N, columns) times the transposed weight: (N, rows), in x's dtype."""
        if x.shape[1] != self.shape[1]:
            raise ValueError(f"x has {x.shape[1]} columns, the matrix {self.shape[1]}")
        if x.dtype not in _DTYPES:
            return self.matmul(x.float()).to(x.dtype)
        out = torch.empty(x.shape[0], self.shape[0], dtype=x.dtype, device=x.device)
        if not out.numel():
            return out
        # Triton launches kernels on torch's current device.
        with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
            if x.shape[0] <= FEW_TOKENS:
                self._matmul_few_tokens(x.contiguous(), out)
            else:
                self._matmul_many_tokens(*_to_float16(x), out)
        return out

    def _matmul_few_tokens(self, x: Tensor, out: Tensor) -> None:
        from mrs.kernels.triton.matmul import matmul_few_tokens

        tokens, rows = out.shape
        matmul_few_tokens[(-(-rows // FEW_ROWS),)](
            x,
            self.planes,
            out,
            tokens,
            rows,
            self.shape[1] // 32,
            ONE,
            TOKENS=1 << (tokens - 1).bit_length(),
            ROWS=FEW_ROWS,
            WORDS=FEW_WORDS,
            LAYOUT=self.layout,
            num_warps=1,
        )

    def _matmul_many_tokens(self, x: Tensor, factors: Tensor, out: Tensor) -> None:
        from mrs.kernels.triton.matmul import matmul_many_tokens

        tokens, rows = out.shape
        tile_tokens = min(max(1 << (tokens - 1).bit_length(), 16), 128)
        tile_rows = 64
        matmul_many_tokens[(-(-tokens // tile_tokens) * -(-rows // tile_rows),)](
            x,
            factors,
            self.planes,
            out,
            tokens,
            rows,
            self.shape[1] // 32,
            ONE,
            TOKENS=tile_tokens,
            ROWS=tile_rows,
            # Scales of 4 bytes are kept in shared memory for the next step, those of 2 are not.
            WORDS=16 if self.layout.is_wide else 32,
            LAYOUT=self.layout,
            num_warps=8 if tile_tokens >= 64 else 4,
            num_stages=2,
        )

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The values of the rows `ids` (N,), as (N, columns)."""
        if self.device.type != "cuda":
            return decode_rows(self.layout, self.planes, ids).to(dtype)
        return self.decode_in_one_launch(ids, dtype)

    def decode_in_one_launch(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """As `rows`, by the Triton kernel."""
        from mrs.kernels.triton import matmul

        out = torch.empty(len(ids), self.shape[1], dtype=dtype, device=self.device)
        grid = len(ids), -(-self.shape[1] // (8 * FEW_WORDS))
        with torch.cuda.device(ids.device) if ids.is_cuda else nullcontext():
            if len(ids):
                matmul.decode_rows[grid](
                    self.planes,
                    ids,
                    out,
                    self.shape[1] // 32,
                    ONE,
                    WORDS=FEW_WORDS,
                    LAYOUT=self.layout,
                    num_warps=1,
                )
        return out


def _to_float16(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (N, columns) divided by a factor for each row, as float16, and the factors (N,).

    A factor is the power of two that brings the largest value of the row between 2**14 and 2**15:
    nothing overflows, and values that underflow are negligible in the row's products.
    """
    if x.dtype == torch.float16:
        return x.contiguous(), torch.ones(len(x), device=x.device)
    largest = x.abs().amax(1).float()
    exponents = 15 - torch.frexp(largest).exponent.clamp(min=-100)
    ones = torch.ones_like(largest)
    scaled = (x * torch.ldexp(ones, exponents)[:, None].to(x.dtype)).half()
    return scaled.contiguous(), torch.ldexp(ones, -exponents)
