"""Quantized matrices on GPUs, multiplied by the Triton kernels."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from mrs.kernels.triton.bit_planes import Fields, PlaneLayout, allocate, decode_rows, write_planes

#: More rows of activations than these are multiplied in tiles, by matrix units.
FEW_TOKENS = 8

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

#: The bits of 1.0. The kernels take them as an argument: a constant that the compiler knew would
#: take one more instruction for each weight.
_ONE = 0x3F800000

#: How many rows a program of the matrix-vector kernel makes, and how many words it reads of each:
#: 16 bytes a thread, of 4 bits a number. With other sizes Triton moves numbers between threads.
_FEW_ROWS, _FEW_WORDS = 2, 128


class PlaneMatrix:
    """A (rows, columns) weight in planes. It takes as many bytes as in the file."""

    def __init__(self, layout: PlaneLayout, rows: int, columns: int, device: torch.device) -> None:
        """Memory for the weight, to be filled by `fill`."""
        self._layout = layout
        self._data, self._planes = allocate(layout, rows, columns, device)
        self.shape = (rows, columns)
        self.device = self._data.device

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    def fill(self, fields: Fields, first_row: int = 0) -> None:
        """Take the numbers of some rows as rows `first_row` and after."""
        count = len(fields.codes)
        if fields.codes.shape[1] != self.shape[1] or first_row + count > self.shape[0]:
            raise ValueError(f"{tuple(fields.codes.shape)} from row {first_row} in {self.shape}")
        write_planes(self._layout, self._planes, fields, first_row)

    def matmul(self, x: Tensor) -> Tensor:
        """x (N, columns) times the transposed weight: (N, rows), in x's dtype."""
        if x.shape[1] != self.shape[1]:
            raise ValueError(f"x has {x.shape[1]} columns, the matrix {self.shape[1]}")
        if x.dtype not in _DTYPES:
            return self.matmul(x.float()).to(x.dtype)
        out = torch.empty(x.shape[0], self.shape[0], dtype=x.dtype, device=x.device)
        if not out.numel():
            return out
        # Triton starts kernels on torch's current device.
        with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
            if x.shape[0] <= FEW_TOKENS:
                self._multiply_few(x.contiguous(), out)
            else:
                self._multiply_many(*_as_halves(x), out)
        return out

    def _multiply_few(self, x: Tensor, out: Tensor) -> None:
        from mrs.kernels.triton.matmul import multiply_few

        tokens, rows = out.shape
        multiply_few[(-(-rows // _FEW_ROWS),)](
            x,
            self._planes,
            out,
            tokens,
            rows,
            self.shape[1] // 32,
            _ONE,
            TOKENS=1 << (tokens - 1).bit_length(),
            ROWS=_FEW_ROWS,
            WORDS=_FEW_WORDS,
            LAYOUT=self._layout,
            num_warps=1,
        )

    def _multiply_many(self, x: Tensor, factors: Tensor, out: Tensor) -> None:
        from mrs.kernels.triton.matmul import multiply_many

        tokens, rows = out.shape
        tile_tokens = min(max(1 << (tokens - 1).bit_length(), 16), 128)
        tile_rows = 64
        multiply_many[(-(-tokens // tile_tokens) * -(-rows // tile_rows),)](
            x,
            factors,
            self._planes,
            out,
            tokens,
            rows,
            self.shape[1] // 32,
            _ONE,
            TOKENS=tile_tokens,
            ROWS=tile_rows,
            LAYOUT=self._layout,
            num_warps=8 if tile_tokens == 128 else 4,
            num_stages=2,
        )

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The values of the rows `ids` (N,), as (N, columns)."""
        return decode_rows(self._layout, self._planes, ids).to(dtype)


def _as_halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (N, columns) as halves, and the factor (N,) that each row of them has lost.

    Factors are powers of two that put the largest number of a row between 2**14 and 2**15, so
    nothing overflows and what is lost is far smaller than what the row adds up to.
    """
    if x.dtype == torch.float16:
        return x.contiguous(), torch.ones(len(x), device=x.device)
    largest = x.abs().amax(1).float()
    exponents = 15 - torch.frexp(largest).exponent.clamp(min=-100)
    ones = torch.ones_like(largest)
    halves = (x * torch.ldexp(ones, exponents)[:, None].to(x.dtype)).half()
    return halves.contiguous(), torch.ldexp(ones, -exponents)
