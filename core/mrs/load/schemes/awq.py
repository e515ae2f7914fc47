"""Rows of AWQ weights: columns of the file's tensors, eight in a word in an order of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.schemes.awq import Awq
from mrs.architecture.weight_scheme import Layout
from mrs.load.schemes.affine_blocks import affine_blocks
from mrs.load.schemes.part_reader import PartReader

#: The nibble of a word in which each of its eight columns is.
_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)


def unpack(scheme: Awq, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
    words = range(rows.start // 8, -(-rows.stop // 8))
    inside = slice(rows.start - 8 * words.start, rows.stop - 8 * words.start)
    codes = _nibbles(parts.columns("codes", words))[inside]
    zeros = _nibbles(parts.columns("zeros", words))[inside].float()
    scales = parts.columns("scales", rows).T.float()
    return affine_blocks(layout, codes, scales, zeros=zeros)


def _nibbles(words: Tensor) -> Tensor:
    """int32 (n, words) to uint8 (8 * words, n)."""
    shifts = 4 * torch.tensor(_NIBBLES, dtype=torch.int32).view(1, 8, 1)
    return (words.T.unsqueeze(1) >> shifts & 15).to(torch.uint8).flatten(0, 1)
