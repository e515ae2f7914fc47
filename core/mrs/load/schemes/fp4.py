"""Rows of 4-bit floats: MXFP4 in GGUF's blocks, NVFP4 decoded."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.schemes.fp4 import MlxMxfp4, Mxfp4, Nvfp4, PackedMxfp4
from mrs.architecture.weight_scheme import Layout
from mrs.load.schemes.part_reader import PartReader
from mrs.quants.bits import bytes_of, pack_planes
from mrs.quants.fp4 import e2m1_values


def unpack_mxfp4(
    scheme: Mxfp4 | PackedMxfp4 | MlxMxfp4,
    layout: Layout,
    parts: PartReader,
    rows: range,
    columns: int,
) -> Tensor:
    width = columns // 8 if isinstance(scheme, MlxMxfp4) else columns // 2
    codes = _nibbles(parts.rows("codes", rows, width).view(torch.uint8)).view(-1, 32)
    exponents = parts.rows("scales", rows, columns // 32).view(-1, 1)
    return torch.cat((exponents, pack_planes(codes, 16, 4)), 1).view(len(rows), -1)


def unpack_nvfp4(
    scheme: Nvfp4, layout: Layout, parts: PartReader, rows: range, columns: int
) -> Tensor:
    values = e2m1_values(_nibbles(parts.rows("codes", rows))).view(len(rows), -1, 16)
    scales = parts.rows("scales", rows).view(torch.float8_e4m3fn).float()
    scales = scales / parts.floats("divisor").reshape(())
    return bytes_of((values * scales.unsqueeze(-1)).flatten(1))


def _nibbles(packed: Tensor) -> Tensor:
    """The codes of bytes (R, n), the low nibble first: uint8 (R, 2 * n)."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(1)
