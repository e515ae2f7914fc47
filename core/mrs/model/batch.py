"""The new tokens of some sequences, as the model takes them: tensors alone."""

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
    """Features of an image, (F, hidden), at the rows `rows` (R,) of the batch.

    Where they take the place of embeddings, R = F. Where layers of their own attend to them,
    R = 1: the row from which on they are visible.
    """

    rows: Tensor
    features: Tensor


@dataclass(frozen=True)
class ForwardBatch:
    """N new tokens of B sequences, one sequence after another.

    `token_ids` (N). `positions` (N), or (3, N) in time, height and width, are what tokens are
    rotated by. `rope_lengths` (B) are the sequences' lengths once their whole prompts are in,
    where the tokens are only a chunk of it: some ropes depend on them. `query_start` (B + 1) is
    the first row of each sequence, and the end; `context_lens` (B) its length with the new
    tokens; both int32 on the CPU. `attention` says for each pool of blocks where the sequences'
    keys are. `logits_rows` (W), ascending, are the rows of which logits are wanted. `adapter_ids`
    (B) will name an adapter for each sequence.
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
        """The rows of each sequence, and its length."""
        starts = self.query_start.tolist()
        rows = (slice(*bounds) for bounds in itertools.pairwise(starts))
        return tuple(map(Queries, rows, self.context_lens.tolist()))

    def on(self, device: torch.device) -> ForwardBatch:
        """The same with block tables and slots on a device."""
        if all(group.slot_mapping.device == device for group in self.attention):
            return self
        return replace(self, attention=tuple(group.on(device) for group in self.attention))

    @property
    def has_attention_ends(self) -> bool:
        """Whether some tokens attend to others behind them."""
        return any(group.attention_ends is not None for group in self.attention)


@dataclass(frozen=True)
class SequenceInput:
    """The next tokens of the sequence in `cache`.

    `length` is that of the sequence once its whole prompt is in, 0: with these tokens. `images`
    are among them, by rows of these tokens. Tokens are rotated by their places in the sequence
    plus `offset`; or by `positions` (3, T). `attention_ends` (T,) is the last place of the
    sequence that each token attends to, where that is not its own. `logits_rows` are those of
    these tokens of which logits are wanted.
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
        """The places of the tokens in the sequence."""
        return range(self.cache.length, self.cache.length + len(self.token_ids))


def forward_batch(inputs: Sequence[SequenceInput]) -> ForwardBatch:
    """All inputs in one batch; their caches get blocks for the new tokens."""
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
    """Each input with its first row."""
    return list(zip(inputs, starts, strict=False))


def _positions(inputs: Sequence[SequenceInput]) -> Tensor:
    """(N), or (3, N) where some tokens have three positions."""
    if all(each.positions is None for each in inputs):
        return torch.tensor([at + each.offset for each in inputs for at in each.span])
    parts = [
        (torch.tensor(each.span) + each.offset).expand(3, -1)
        if each.positions is None
        else each.positions
        for each in inputs
    ]
    return torch.cat(parts, dim=1)


def _attention_ends(inputs: Sequence[SequenceInput]) -> Tensor | None:
    """(N), None where every token attends up to itself."""
    if all(each.attention_ends is None for each in inputs):
        return None
    parts = [
        torch.arange(each.span.start, each.span.stop)
        if each.attention_ends is None
        else each.attention_ends
        for each in inputs
    ]
    return torch.cat(parts)


def _blocks(tables: Sequence[BlockTable], inputs: Sequence[SequenceInput]) -> tuple[Tensor, Tensor]:
    """Block tables (B, P) and slots (N) of the sequences in one pool."""
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
