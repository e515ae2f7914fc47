"""Rows of HQQ weights, whose groups are packed by parts: the first one in the highest bits."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.schemes.hqq import Hqq
from mrs.architecture.weight_scheme import Layout
from mrs.load.schemes.affine_blocks import affine_blocks
from mrs.load.schemes.part_reader import PartReader


def unpack(scheme: Hqq, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
    each = columns // layout.group
    groups = range(rows.start * each, rows.stop * each)
    height = layout.rows * each * layout.bits // 8
    found = []
    for part in range(8 // layout.bits):
        first, last = max(groups.start, part * height), min(groups.stop, (part + 1) * height)
        if first < last:
            packed = parts.rows("codes", range(first - part * height, last - part * height))
            found.append(packed >> 8 - layout.bits * (part + 1) & (1 << layout.bits) - 1)
    codes = torch.cat(found).view(len(rows), columns)
    scales, zeros = (
        parts.rows(role, groups, 1).float().view(len(rows), each) for role in ("scales", "zeros")
    )
    return affine_blocks(layout, codes, scales, zeros=zeros)
