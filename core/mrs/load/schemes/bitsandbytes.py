"""Rows of bitsandbytes' weights."""

from __future__ import annotations

import json
from math import isfinite

import torch
from torch import Tensor

from mrs.architecture.schemes.bitsandbytes import RowInts, TableCodes
from mrs.architecture.weight_scheme import Layout
from mrs.errors import NotReadable
from mrs.load.schemes.affine_blocks import affine_blocks
from mrs.load.schemes.part_reader import PartReader
from mrs.quants.bits import bytes_of
from mrs.quants.grouped import NF4_VALUES, nf4_blocks


def unpack_table(
    scheme: TableCodes, layout: Layout, parts: PartReader, rows: range, columns: int
) -> Tensor:
    """NF4, or values in float32; the first of two codes in a byte is the high nibble."""
    first, last = rows.start * columns, rows.stop * columns
    packed = parts.bytes("codes", range(first // 2, -(-last // 2)))
    codes = torch.stack((packed >> 4, packed & 15), -1).flatten()[first % 2 :][: last - first]
    blocks = range(first // layout.group, -(-last // layout.group))
    largest = _largest(parts, blocks)
    each = layout.format.block_elements
    scales = largest[torch.arange(first, last, each) // layout.group - blocks.start]
    table = parts.floats("table")
    if layout.format.name == "F32":
        return bytes_of((table[codes.long()] * scales).view(len(rows), columns))
    if not torch.equal(table, torch.tensor(NF4_VALUES)):
        raise NotReadable(f"the tensor {parts.name('table')!r} is not the table of nf4")
    return nf4_blocks(codes.view(-1, each), scales).view(len(rows), -1)


def _largest(parts: PartReader, blocks: range) -> Tensor:
    """The largest magnitudes of some blocks, float32."""
    stored = parts.rows("largest", blocks, 1).flatten()
    if "outer largest" not in parts:
        return stored.float()
    size, offset = _nesting(parts)
    outer = parts.floats("outer largest").flatten()
    index = torch.arange(blocks.start, blocks.stop) // size
    if int(index[-1]) >= len(outer):
        raise NotReadable(f"the tensor {parts.name('outer largest')!r} is too short")
    return parts.floats("outer table")[stored.long()] * outer[index] + offset


def _nesting(parts: PartReader) -> tuple[int, float]:
    """Blocks of an outer block, and the offset of the magnitudes."""
    role = next((role for role in ("state nf4", "state fp4") if role in parts), None)
    try:
        state = json.loads(bytes(parts.whole(role or "").tolist()))
        size, offset = int(state.get("nested_blocksize", 256)), float(state["nested_offset"])
        if size < 1 or not isfinite(offset):
            raise ValueError
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NotReadable(
            f"{parts.name('largest')!r} has no readable quantization state"
        ) from error
    return size, offset


def unpack_rows(
    scheme: RowInts, layout: Layout, parts: PartReader, rows: range, columns: int
) -> Tensor:
    codes = parts.rows("codes", rows).view(torch.uint8) ^ 0x80
    scales = parts.rows("largest", rows, 1).float() / 127
    return affine_blocks(layout, codes, scales, zeros=torch.full_like(scales, 128))
