"""Attention within chunks of a sequence, as attention to shorter sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from mrs.kernels.paged import AttentionBatch, Queries


class _Piece(NamedTuple):
    """The new tokens of sequence `sequence` that are in one chunk.

    `tokens` of them; the chunk has `context` tokens so far, from block `first_block` on.
    """

    sequence: int
    tokens: int
    context: int
    first_block: int


def within_chunks(batch: AttentionBatch, chunk: int, block_tokens: int) -> AttentionBatch:
    """The batch as one whose sequences are the chunks of `chunk` tokens that its tokens are in.

    `chunk` is a multiple of `block_tokens`, so that a chunk begins with a block. Slots stay.
    """
    split = batch.chunked.get(chunk)
    if split is None:
        pieces = list(_pieces(batch.queries, chunk, block_tokens))
        split = batch.chunked[chunk] = _split(batch, pieces, block_tokens)
    return split


def _pieces(queries: Sequence[Queries], chunk: int, block_tokens: int) -> Iterator[_Piece]:
    for sequence, (rows, context) in enumerate(queries):
        start = context - (rows.stop - rows.start)
        while start < context:
            first = start // chunk * chunk
            end = min(first + chunk, context)
            yield _Piece(sequence, end - start, end - first, first // block_tokens)
            start = end


def _split(batch: AttentionBatch, pieces: Sequence[_Piece], block_tokens: int) -> AttentionBatch:
    starts = torch.tensor([0, *(piece.tokens for piece in pieces)], dtype=torch.int32)
    blocks = [-(-piece.context // block_tokens) for piece in pieces]
    width, longest = batch.block_tables.shape[1], max(blocks)
    wanted = [
        # Beyond the end of a chunk any block will do.
        [
            piece.sequence * width + piece.first_block + min(block, count - 1)
            for block in range(longest)
        ]
        for piece, count in zip(pieces, blocks, strict=True)
    ]
    device = batch.block_tables.device
    return replace(
        batch,
        query_start=starts.cumsum(0, dtype=torch.int32),
        context_lens=torch.tensor([piece.context for piece in pieces], dtype=torch.int32),
        block_tables=batch.block_tables.flatten()[torch.tensor(wanted, device=device)],
    )
