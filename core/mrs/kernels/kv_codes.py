"""Quantized keys and values: their codes, and how these lie in a block of the cache.

Formats are Q8_0 and Q4_0 of GGUF: 32 values share a scale in float16. A row, one token's key or
value of one head, has all codes and then all scales. It is rotated by a Hadamard matrix before it
is quantized, so that no few values determine a scale; queries are rotated, too, and the sums of
values back again (as QuaRot, arXiv 2404.00456, does).

A row's rest is what its codes leave of it. Tokens attend to codes and rests in their own block, and
in the first of their sequence, which every token attends to; to codes alone in others. Which blocks
a token reads whole depends on its position alone, so that its result is the same however it is fed.

In memory the rows of a block's tokens are a plane, as native/attention/attend_codes.inc.h has it,
which computes with codes. Here torch decodes them: right, and slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

#: The formats, and the bits of their codes.
CodeFormat = Literal["Q8_0", "Q4_0"]
BITS: dict[CodeFormat, int] = {"Q8_0": 8, "Q4_0": 4}
#: Values that share a scale.
UNIT = 32
#: Tokens of a block: those of a step of the native kernels.
QUANTIZED_BLOCK_TOKENS = 64
#: Codes that a lane of the native kernels multiplies at once.
_FOUR = 4
#: What rests are multiplied by: their scales in float16 would be too small otherwise.
_REST_FACTOR = 256
#: Most values that one Hadamard matrix rotates, as in native/attention/attention.h.
_MOST_ROTATED = 256


class KVFormats(NamedTuple):
    """How keys and values are quantized."""

    keys: CodeFormat
    values: CodeFormat


#: The type of cached keys and values.
KVType = torch.dtype | KVFormats


@dataclass(frozen=True)
class RowCodes:
    """How the keys or the values of one layer, of heads of `dim` values, are quantized."""

    format: CodeFormat
    dim: int
    are_values: bool

    @property
    def code_bytes(self) -> int:
        return self.dim * BITS[self.format] // 8

    @property
    def row_bytes(self) -> int:
        return self.code_bytes + self.dim // UNIT * 2

    @property
    def rests(self) -> RowCodes:
        """How the rests of these rows are quantized."""
        return RowCodes("Q8_0", self.dim, self.are_values)

    def encode_rests(self, x: Tensor, rows: Tensor) -> Tensor:
        """What `rows`, the codes of x (…, D), leave of it: rows of `rests`."""
        return self.rests.encode((x.float() - self.decode(rows)) * _REST_FACTOR)

    def decode_whole(self, rows: Tensor, rests: Tensor) -> Tensor:
        """As `decode`, with the rests of the rows."""
        return self.decode(rows) + self.rests.decode(rests) / _REST_FACTOR

    def encode(self, x: Tensor) -> Tensor:
        """x (…, D) as rows, uint8 (…, row bytes)."""
        units = _in_parts(self._rotated(x.float()), UNIT)
        bound = units.abs().amax(-1, keepdim=True)
        if self.format == "Q8_0":
            scales = bound / 127
            codes = (units * _inverse(scales)).round().to(torch.int8).view(torch.uint8)
        else:
            scales = units.gather(-1, units.abs().argmax(-1, keepdim=True)) / -8
            nibbles = (units * _inverse(scales) + 8.5).clamp(0, 15).to(torch.uint8)
            codes = nibbles[..., : UNIT // 2] | nibbles[..., UNIT // 2 :] << 4
        halves = scales.flatten(-2).half().contiguous().view(torch.uint8)
        return torch.cat((codes.flatten(-2), halves), dim=-1)

    def decode(self, rows: Tensor) -> Tensor:
        """Rows (…, row bytes) as float32 (…, D)."""
        codes = _in_parts(rows[..., : self.code_bytes], UNIT * BITS[self.format] // 8)
        scales = rows[..., self.code_bytes :].contiguous().view(torch.float16).float()
        if self.format == "Q8_0":
            units = codes.contiguous().view(torch.int8).float()
        else:
            units = torch.cat((codes & 15, codes >> 4), dim=-1).float() - 8
        return self._rotated((units * scales[..., None]).flatten(-2))

    def rows(self, planes: Tensor) -> Tensor:
        """The rows of planes (…, T, row bytes), in the same shape."""
        codes, scales = self._parts(planes)
        tokens, size = planes.shape[-2], self.code_bytes
        if self.are_values:
            codes = codes.view(*codes.shape[:-1], tokens // _FOUR, size, _FOUR).transpose(-1, -2)
        else:
            codes = codes.view(*codes.shape[:-1], size // _FOUR, tokens, _FOUR).transpose(-2, -3)
        codes = codes.reshape(*planes.shape[:-1], size)
        scales = scales.view(*scales.shape[:-1], -1, tokens, 2).transpose(-2, -3)
        return torch.cat((codes, scales.flatten(-2)), dim=-1)

    def planes(self, rows: Tensor) -> Tensor:
        """The planes of rows (…, T, row bytes), in the same shape."""
        codes, scales = rows[..., : self.code_bytes], rows[..., self.code_bytes :]
        if self.are_values:
            codes = codes.reshape(*codes.shape[:-2], -1, _FOUR, self.code_bytes).transpose(-1, -2)
        else:
            codes = _in_parts(codes, _FOUR).transpose(-2, -3)
        scales = _in_parts(scales, 2).transpose(-2, -3)
        plane = torch.cat((codes.flatten(-3), scales.flatten(-3)), dim=-1)
        return plane.view(rows.shape)

    def _parts(self, planes: Tensor) -> tuple[Tensor, Tensor]:
        """The bytes of all codes and of all scales of each plane."""
        flat = planes.contiguous().flatten(-2)
        size = planes.shape[-2] * self.code_bytes
        return flat[..., :size].contiguous(), flat[..., size:].contiguous()

    def _rotated(self, x: Tensor) -> Tensor:
        """x (…, D), whose parts of a power of two a Hadamard matrix rotates: its own inverse."""
        size = min(self.dim & -self.dim, _MOST_ROTATED)
        parts = _in_parts(x, size)
        half = 1
        while half < size:
            a, b = parts.view(*parts.shape[:-1], -1, 2, half).unbind(-2)
            parts = torch.stack((a + b, a - b), dim=-2).flatten(-3)
            half *= 2
        return (parts * (1 / math.sqrt(size))).flatten(-2)


def _in_parts(x: Tensor, size: int) -> Tensor:
    """x (…, D) as (…, D / size, size)."""
    return x.reshape(*x.shape[:-1], -1, size)


def _inverse(scales: Tensor) -> Tensor:
    """1 / scales, and 0 for 0."""
    return torch.where(scales == 0, scales, 1 / scales)
