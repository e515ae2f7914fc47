"""Rows of the kinds of quantized layers that only UQFF files have."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from mrs.architecture.schemes.uqff import BLOCK, F8Q8_BYTES, Q8_1_BYTES, F8q8, Q8Sum, StridedHqq
from mrs.architecture.weight_scheme import Layout
from mrs.load.schemes.affine_blocks import affine_blocks
from mrs.load.schemes.part_reader import PartReader
from mrs.quants.bits import bytes_of

#: The scale of a block of F8Q8 is stored times this, which mistral.rs takes for the largest
#: F8_E4M3. It is the largest but one, as the scales that mistral.rs 0.9.5 writes show.
_F8Q8_UNIT = 416


def unpack_hqq(
    scheme: StridedHqq, layout: Layout, parts: PartReader, rows: range, columns: int
) -> Tensor:
    """Values in float32. A byte has the codes of values that are a part of the tensor apart."""
    first, last = rows.start * columns, rows.stop * columns
    size = prod(parts.shape("codes"))
    found = []
    for part in range(8 // layout.bits):
        start, stop = max(first, part * size), min(last, (part + 1) * size)
        if start < stop:
            packed = parts.bytes("codes", range(start - part * size, stop - part * size))
            found.append(packed >> 8 - layout.bits * (part + 1) & (1 << layout.bits) - 1)
    scales, zeros = (parts.floats(role).flatten() for role in ("scales", "zeros"))
    group = torch.arange(first, last) % len(scales)
    values = (torch.cat(found).float() - zeros[group]) * scales[group]
    return bytes_of(values.view(len(rows), columns))


def unpack_f8q8(
    scheme: F8q8, layout: Layout, parts: PartReader, rows: range, columns: int
) -> Tensor:
    blocks = parts.rows("codes", rows).view(-1, F8Q8_BYTES)
    scales = blocks[:, :1].contiguous().view(torch.float8_e4m3fn).float() / _F8Q8_UNIT
    scales = scales.view(len(rows), -1)
    codes = (blocks[:, 1:] ^ 0x80).reshape(len(rows), columns)
    return affine_blocks(layout, codes, scales, zeros=torch.full_like(scales, 128))


def unpack_q8_1(
    scheme: Q8Sum, layout: Layout, parts: PartReader, rows: range, columns: int
) -> Tensor:
    blocks = parts.rows("codes", rows).view(-1, Q8_1_BYTES)
    kept = torch.cat((blocks[:, :2], blocks[:, Q8_1_BYTES - BLOCK :]), 1)
    return kept.view(len(rows), -1)
