"""Rows of AWQ weights: columns of the file's tensors, eight in a word in an order of their own."""

from __future__ import annotations

from torch import Tensor

from mrs.architecture.schemes.awq import Awq
from mrs.architecture.weight_scheme import Layout
from mrs.load.schemes.affine_blocks import affine_blocks, unpack_stream
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
    values = unpack_stream(words.T, 4, 8 * len(words)).view(words.shape[1], -1, 8)
    return values[:, :, list(_NIBBLES)].transpose(1, 2).flatten(0, 1)
