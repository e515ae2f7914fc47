"""The input of a forward pass: the new tokens of some sequences, as tensors."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mrs.cache.sequence_cache import SequenceCache
from mrs.graph.operations import Given
from mrs.kernels.paged import AttentionBatch, Queries


@dataclass(frozen=True)
class ImageFeatures:
    """Features of an image, (F, hidden), and the rows (R,) of the batch that they belong to.

    If the features replace token embeddings, R = F. If cross-attention layers attend to them,
    R = 1: the first row that can attend to the image. Further features in each row, (F, (1 + n) *
    hidden), are added to the output of the first n layers.
    """

    rows: Tensor
    features: Tensor

    def add_to(self, x: Tensor, layer: int) -> None:
        """Add what belongs to the output x (N, hidden) of the layer with this index."""
        hidden = x.shape[1]
        added = self.features[:, (layer + 1) * hidden : (layer + 2) * hidden]
        if added.shape[1]:
            x.index_add_(0, self.rows.to(x.device), added.to(x.device, x.dtype))


@dataclass(frozen=True)
class ForwardBatch:
    """N new tokens of B sequences, one sequence after another.

    `token_ids`     (N).
    `positions`     (N), or (3, N) for time, height and width: the positions for rotary embedding.
    `queries`       rows and length of each sequence, new tokens included.
    `rope_lengths`  the length of each sequence with its whole prompt, even if the batch has only a
                    chunk of it. Some rope scalings depend on it.
    `attention`     block tables and slots, one entry for each block pool.
    `logits_rows`   the W rows whose logits are computed, in ascending order.
    `scored_rows`   further rows, whose logits are computed some at a time to score prompts.
    `images`        features of the images among the new tokens.
    `adapter_ids`   the adapter of each sequence, None for the model without one; None for the whole
                    batch if no sequence has one.
    `token_types`   (N): to which of two texts each token belongs; None if there is one text.
    `layer_inputs`  (N, layers, size): per-layer embeddings, if the model has them.
    `states`        (N, hidden): what a draft head reads of its target, or of itself.
    `given`         what layers read of each token beside its hidden state, once computed; among it
                    the keys that an indexer has chosen, for the layers after it.
    """

    token_ids: Tensor
    positions: Tensor
    queries: Sequence[Queries]
    rope_lengths: Sequence[int]
    attention: tuple[AttentionBatch, ...]
    logits_rows: Sequence[int]
    images: tuple[ImageFeatures, ...] = ()
    adapter_ids: Sequence[int | None] | None = None
    token_types: Tensor | None = None
    layer_inputs: Tensor | None = None
    scored_rows: Sequence[int] = ()
    states: Tensor | None = None
    given: dict[Given, Tensor] = field(default_factory=dict)

    def on(self, device: torch.device) -> ForwardBatch:
        """The same batch with block tables, slots and inputs of layers on `device`."""
        inputs = self.layer_inputs
        moved = inputs if inputs is None or inputs.device == device else inputs.to(device)
        if moved is inputs and all(group.slot_mapping.device == device for group in self.attention):
            return self
        attention = tuple(group.on(device) for group in self.attention)
        return replace(self, attention=attention, layer_inputs=moved)

    def has_features_for(self, hidden_size: int) -> bool:
        """Whether layers of a model of `hidden_size` get features of images added."""
        return any(image.features.shape[1] > hidden_size for image in self.images)

    @cached_property
    def native_starts(self) -> ctypes.Array[ctypes.c_int32]:
        """The first rows of all sequences, and the end of the last one, for the native library."""
        starts = [rows.start for rows, _ in self.queries]
        return (ctypes.c_int32 * (len(starts) + 1))(*starts, self.queries[-1][0].stop)

    @property
    def has_attention_ends(self) -> bool:
        """Whether some tokens attend to later tokens (bidirectional images)."""
        return any(group.attention_ends is not None for group in self.attention)


class BlockIndices(Protocol):
    """What a batch needs of a block table."""

    def row(self) -> list[int]:
        """The indices of the blocks, in the order of their tokens."""

    def slots(self, start: int, end: int) -> list[int]:
        """Where in the pool the tokens `start` to `end` are written."""


class SequenceInput(NamedTuple):
    """The next T tokens of the sequence in `cache`.

    `length` is the length of the sequence with its whole prompt; 0 if the prompt ends with these
    tokens. The rows of `images`, `logits_rows` and `scored_rows` count from the first of these
    tokens. The rotary position of a token is its index in the sequence plus `offset`, or given by
    `positions` (3, T). `attention_ends` (T,) is the index of the last token that each token attends
    to; None means itself. `adapter_id` is the index of an adapter of the decoder. `token_types` (T)
    say to which of two texts a token belongs; () means to the first.
    """

    cache: SequenceCache
    token_ids: Sequence[int]
    length: int = 0
    images: tuple[ImageFeatures, ...] = ()
    offset: int = 0
    positions: Tensor | None = None
    attention_ends: Tensor | None = None
    logits_rows: Sequence[int] = ()
    adapter_id: int | None = None
    token_types: Sequence[int] = ()
    scored_rows: Sequence[int] = ()

    @property
    def span(self) -> range:
        """The indices of the new tokens in the sequence."""
        return range(self.cache.length, self.cache.length + len(self.token_ids))


def forward_batch(inputs: Sequence[SequenceInput]) -> ForwardBatch:
    """Join all inputs to one batch and reserve cache blocks for the new tokens.

    In one pass: after each decode step the interpreter starts with cold caches, so that every
    further statement is slow.
    """
    starts, lengths, rope_lengths = [0], [], []
    token_ids: list[int] = []
    logits_rows: list[int] = []
    scored_rows: list[int] = []
    images: list[ImageFeatures] = []
    for each in inputs:
        first, count = starts[-1], len(each.token_ids)
        each.cache.reserve(count)
        length = each.cache.length + count
        starts.append(first + count)
        lengths.append(length)
        rope_lengths.append(max(each.length, length))
        token_ids += each.token_ids
        logits_rows += [first + row for row in each.logits_rows]
        scored_rows += [first + row for row in each.scored_rows]
        images += [ImageFeatures(image.rows + first, image.features) for image in each.images]
    tables = [each.cache.tables for each in inputs]
    return ForwardBatch(
        _ints(token_ids),
        _positions(inputs),
        list(map(Queries, map(slice, starts, starts[1:]), lengths)),
        rope_lengths,
        attention_batches(tables, starts, lengths, _attention_ends(inputs)),
        logits_rows,
        tuple(images),
        _adapter_ids(inputs),
        _token_types(inputs),
        scored_rows=scored_rows,
    )


def _adapter_ids(inputs: Sequence[SequenceInput]) -> Sequence[int | None] | None:
    ids = [each.adapter_id for each in inputs]
    return None if all(each is None for each in ids) else ids


def attention_batches(
    tables: Sequence[Sequence[BlockIndices]],
    starts: Sequence[int],
    lengths: Sequence[int],
    ends: Tensor | None,
) -> tuple[AttentionBatch, ...]:
    """One batch for each group of block tables; `tables` has those of each sequence.

    `starts` are the first rows of all sequences, and the end of the last one; `lengths` are those
    of the sequences, new tokens included.
    """
    shared = _ints(starts, np.int32), _ints(lengths, np.int32)
    pools = zip(*tables, strict=True)
    return tuple([AttentionBatch(*shared, *_blocks(pool, starts, lengths), ends) for pool in pools])


def _ints(values: Sequence[int] | Sequence[Sequence[int]], dtype: type = np.int64) -> Tensor:
    """A tensor of lists of ints; NumPy converts these much faster than torch."""
    return torch.from_numpy(np.array(values, dtype))


def _positions(inputs: Sequence[SequenceInput]) -> Tensor:
    """(N), or (3, N) if some tokens have positions in three dimensions."""
    if all(each.positions is None for each in inputs):
        return _ints([index + each.offset for each in inputs for index in each.span])
    positions = [
        (torch.tensor(each.span) + each.offset).expand(3, -1)
        if each.positions is None
        else each.positions
        for each in inputs
    ]
    return torch.cat(positions, dim=1)


def _token_types(inputs: Sequence[SequenceInput]) -> Tensor | None:
    if not any(each.token_types for each in inputs):
        return None
    types = (each.token_types or [0] * len(each.token_ids) for each in inputs)
    return _ints([kind for each in types for kind in each])


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


def _blocks(
    tables: Sequence[BlockIndices], starts: Sequence[int], lengths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Block tables (B, P), padded with zeros, and slots (N) of the sequences in one pool."""
    rows = [table.row() for table in tables]
    longest = max(map(len, rows))
    padded = [row + [0] * (longest - len(row)) for row in rows]
    slots: list[int] = []
    rows_of_all = itertools.pairwise(starts)
    for table, (first, end), length in zip(tables, rows_of_all, lengths, strict=True):
        slots += table.slots(length - (end - first), length)
    return _ints(padded, np.int32), _ints(slots)
