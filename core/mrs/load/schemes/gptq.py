"""Rows of GPTQ weights, which are columns of the file's tensors."""

from __future__ import annotations

from torch import Tensor

from mrs.architecture.schemes.gptq import Gptq
from mrs.architecture.weight_scheme import Layout
from mrs.load.schemes.affine_blocks import affine_blocks, group_order, unpack_stream
from mrs.load.schemes.part_reader import PartReader

#: Rows whose zeros are whole words for any number of bits.
_ALIGNED = 32


def unpack(scheme: Gptq, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
    first = rows.start // _ALIGNED * _ALIGNED
    last = min(-(-rows.stop // _ALIGNED) * _ALIGNED, layout.rows)
    count, bits = last - first, layout.bits
    codes = unpack_stream(parts.columns("codes", range(first, last)).T, bits, columns)
    words = range(first * bits // 32, -(-last * bits // 32))
    stored = unpack_stream(parts.columns("zeros", words), bits, count).T
    zeros = (stored + scheme.zero_offset & (1 << bits) - 1).float()
    scales = parts.columns("scales", range(first, last)).T.float()
    order = group_order(parts, layout, columns)
    codes = codes if order is None else codes[:, order]
    inside = slice(rows.start - first, rows.stop - first)
    return affine_blocks(layout, codes[inside], scales[inside], zeros=zeros[inside])
