"""The input of a forward pass: the new tokens of some sequences, as tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mrs.cache.block_table import BlockTable
from mrs.cache.sequence_cache import SequenceCache
from mrs.kernels.paged import AttentionBatch, Queries


@dataclass(frozen=True)
class ImageFeatures:
    """Features of an image, (F, hidden), and the rows (R,) of the batch that they belong to.

    If the features replace token embeddings, R = F. If cross-attention layers attend to them,
    R = 1: the first row that can attend to the image.
    """

    rows: Tensor
    features: Tensor


@dataclass(frozen=True)
class ForwardBatch:
    """N new tokens of B sequences, one sequence after another.

    `token_ids`     (N).
    `positions`     (N), or (3, N) for time, height and width: the positions for rotary embedding.
    `rope_lengths`  (B): the length of each sequence with its whole prompt, even if the batch has
                    only a chunk of it. Some rope scalings depend on it.
    `query_start`   (B + 1) int32 on the CPU: the first row of each sequence, then N.
    `context_lens`  (B) int32 on the CPU: the length of each sequence, new tokens included.
    `attention`     block tables and slots, one entry for each block pool.
    `logits_rows`   (W), ascending: the rows whose logits are computed.
    `images`        features of the images among the new tokens.
    `adapter_ids`   (B): reserved for an adapter of each sequence.
    """

    token_ids: Tensor
    positions: Tensor
    rope_lengths: Tensor
    query_start: Tensor
    context_lens: Tensor
    attention: tuple[AttentionBatch, ...]
    logits_rows: Tensor
    images: tuple[ImageFeatures, ...] = ()
    adapter_ids: Tensor | None = None

    @cached_property
    def queries(self) -> tuple[Queries, ...]:
        """Rows and length of each sequence."""
        starts = self.query_start.tolist()
        rows = (slice(*bounds) for bounds in itertools.pairwise(starts))
        return tuple(map(Queries, rows, self.context_lens.tolist()))

    def on(self, device: torch.device) -> ForwardBatch:
        """The same batch with block tables and slots on `device`."""
        if all(group.slot_mapping.device == device for group in self.attention):
            return self
        return replace(self, attention=tuple(group.on(device) for group in self.attention))

    @property
    def has_attention_ends(self) -> bool:
        """Whether some tokens attend to later tokens (bidirectional images)."""
        return any(group.attention_ends is not None for group in self.attention)


@dataclass(frozen=True)
class SequenceInput:
    """The next T tokens of the sequence in `cache`.

    `length` is the length of the sequence with its whole prompt; 0 if the prompt ends with these
    tokens. The rows of `images` and `logits_rows` count from the first of these tokens. The rotary
    position of a token is its index in the sequence plus `offset`, or given by `positions` (3, T).
    `attention_ends` (T,) is the index of the last token that each token attends to; None means
    itself.
    """

    cache: SequenceCache
    token_ids: Sequence[int]
    length: int = 0
    images: tuple[ImageFeatures, ...] = ()
    offset: int = 0
    positions: Tensor | None = None
    attention_ends: Tensor | None = None
    logits_rows: Sequence[int] = ()

    @property
    def span(self) -> range:
        """The indices of the new tokens in the sequence."""
        return range(self.cache.length, self.cache.length + len(self.token_ids))


def forward_batch(inputs: Sequence[SequenceInput]) -> ForwardBatch:
    """Join all inputs to one batch and reserve cache blocks for the new tokens."""
    starts = [0]
    for each in inputs:
        each.cache.reserve(len(each.token_ids))
        starts.append(starts[-1] + len(each.token_ids))
    query_start = torch.tensor(starts, dtype=torch.int32)
    context_lens = torch.tensor([each.span.stop for each in inputs], dtype=torch.int32)
    ends = _attention_ends(inputs)
    groups = zip(*(each.cache.tables for each in inputs), strict=True)
    return ForwardBatch(
        torch.tensor([token for each in inputs for token in each.token_ids]),
        _positions(inputs),
        torch.tensor([max(each.length, each.span.stop) for each in inputs]),
        query_start,
        context_lens,
        tuple(
            AttentionBatch(query_start, context_lens, *_blocks(tables, inputs), ends)
            for tables in groups
        ),
        torch.tensor(
            [first + row for each, first in _pairs(inputs, starts) for row in each.logits_rows],
            dtype=torch.long,
        ),
        tuple(
            ImageFeatures(image.rows + first, image.features)
            for each, first in _pairs(inputs, starts)
            for image in each.images
        ),
    )


def _pairs(
    inputs: Sequence[SequenceInput], starts: Sequence[int]
) -> list[tuple[SequenceInput, int]]:
    """Each input with its first row of the batch."""
    return list(zip(inputs, starts, strict=False))


def _positions(inputs: Sequence[SequenceInput]) -> Tensor:
    """(N), or (3, N) if some tokens have positions in three dimensions."""
    if all(each.positions is None for each in inputs):
        return torch.tensor([index + each.offset for each in inputs for index in each.span])
    positions = [
        (torch.tensor(each.span) + each.offset).expand(3, -1)
        if each.positions is None
        else each.positions
        for each in inputs
    ]
    return torch.cat(positions, dim=1)


def _attention_ends(inputs: Sequence[SequenceInput]) -> Tensor | None:
    """(N): the last token that each token attends to; None if that is itself for all."""
    if all(each.attention_ends is None for each in inputs):
        return None
    ends = [
        torch.arange(each.span.start, each.span.stop)
        if each.attention_ends is None
        else each.attention_ends
        for each in inputs
    ]
    return torch.cat(ends)


def _blocks(tables: Sequence[BlockTable], inputs: Sequence[SequenceInput]) -> tuple[Tensor, Tensor]:
    """Block tables (B, P), padded with zeros, and slots (N) of the sequences in one pool."""
    assert all(table.pool is tables[0].pool for table in tables)
    rows = [table.row() for table in tables]
    longest = max(map(len, rows))
    padded = [row + [0] * (longest - len(row)) for row in rows]
    slots = [
        slot
        for table, each in zip(tables, inputs, strict=True)
        for slot in table.slots(each.span.start, each.span.stop)
    ]
    return torch.tensor(padded, dtype=torch.int32), torch.tensor(slots)
