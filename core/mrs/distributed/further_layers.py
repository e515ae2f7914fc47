"""The layers of all other ranks, for the decoder of the head."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.sequence_cache import SequenceCache
from mrs.distributed.hidden_states import receive_hidden, send_hidden
from mrs.distributed.layer_caches import Log, RemoteBlocks, RemoteState, tables_of
from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.link import Link
from mrs.distributed.protocol.messages import (
    LayerCacheInfo,
    LinkSpeed,
    OpenSpace,
    SequenceStep,
    Step,
    StepImage,
)
from mrs.distributed.rank_group import Group
from mrs.kernels.paged import PagedKV
from mrs.model.batch import ForwardBatch


@dataclass
class RemoteRank:
    """The layers of one rank, in order; with `is_share`, ranks before it have the same layers."""

    link: Link
    layers: range
    caches: Sequence[LayerCacheInfo]
    log: Log = field(default_factory=deque)
    groups: Sequence[int] = ()
    blocks: list[RemoteBlocks] = field(default_factory=list)
    is_share: bool = False
    #: The index of its first cache among those of a sequence here.
    first_cache: int = 0

    def open(self, first_cache: int, add: Callable[[int, LayerCacheInfo], int]) -> None:
        """Have new caches; `add` declares one by its index, and returns its group of tables."""
        self.log.clear()
        self.blocks.clear()
        self.first_cache = first_cache
        self.groups = [add(index, info) for index, info in enumerate(self.caches)]
        self.log.append(OpenSpace(list(self.groups)))

    def new_blocks(self, index: int, info: LayerCacheInfo) -> PagedKV:
        self.blocks.append(RemoteBlocks(self.log, index, info.size_bytes))
        return self.blocks[-1]  # type: ignore[return-value]

    def take_over(self, link: Link) -> None:
        """Another process takes the place of this one: its caches are as large, and empty."""
        self.link = link
        self.log.clear()
        self.log.append(OpenSpace(list(self.groups)))
        for each in self.blocks:
            each.resize(each.count)


class Neighbours(NamedTuple):
    """The ranks after the head's stage, the connections to the next and from the last one.

    `links` are the speeds of the connections between stages: the first one is that from the head
    to the second stage, the last one leads back to the head.
    """

    ranks: Sequence[RemoteRank]
    right: Channel
    left: Channel
    links: Sequence[LinkSpeed]


class Connections(NamedTuple):
    """All that a head is connected to: other ranks of its group, and ranks of other stages.

    `sums_s` are the seconds of a sum in each stage, 0 for a stage of one rank.
    """

    group: Group | None
    shares: Sequence[RemoteRank]
    stages: Neighbours | None
    sums_s: Sequence[float]


class RemoteLayers:
    """Sends hidden states to the next rank, and waits for those of the last one.

    A step whose output nobody wants is not waited for, so that the chunks of a prompt follow each
    other through the ranks.
    """

    def __init__(self, neighbours: Neighbours) -> None:
        self._ranks, self._right, self._left, self.links = neighbours
        self._number = 0

    def take_over(self, fresh: Neighbours) -> None:
        """Go on with other processes, which have the layers of those before and empty caches."""
        for rank, new in zip(self._ranks, fresh.ranks, strict=True):
            rank.take_over(new.link)
        _, self._right, self._left, self.links = fresh

    def add_caches(self, builder: CacheBuilder) -> None:
        for rank in self._ranks:
            add = add_share if rank.is_share else _add
            rank.open(builder.count, partial(add, builder, rank))

    def __call__(
        self,
        x: Tensor,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        rows: Sequence[int],
    ) -> Tensor:
        """Raises OSError, EOFError and MrsError."""
        self._number += 1
        for rank in self._ranks:
            rank.link.doing = f"in step {self._number}"
            rank.link.send(step_of(rank, self._number, batch, caches, rows))
        send_hidden(self._right, self._number, x)
        if not len(rows):
            return x[:0]
        return receive_hidden(self._left, self._number, (len(rows), x.shape[1]))


def _add(builder: CacheBuilder, rank: RemoteRank, index: int, info: LayerCacheInfo) -> int:
    """Declare a cache of a rank; returns its group of block tables, or -1."""
    if info.kind == "blocks":
        return builder.add_paged(rank.new_blocks(index, info), info.window)
    if info.kind == "shared":
        builder.add_shared(rank.first_cache + info.owner)
    else:
        builder.add(lambda: RemoteState(rank.log, index, info.size_bytes))
    return -1


def add_share(builder: CacheBuilder, rank: RemoteRank, index: int, info: LayerCacheInfo) -> int:
    """Declare the share of a cache that a rank before this one has, too; returns its group, or -1.

    Blocks are those of the other rank's block tables, and a state is one more of the sequence.
    """
    if info.kind == "blocks":
        return builder.add_blocks(rank.new_blocks(index, info), info.window)
    if info.kind == "state":
        builder.add(lambda: RemoteState(rank.log, index, info.size_bytes))
    return -1


def step_of(
    rank: RemoteRank,
    number: int,
    batch: ForwardBatch,
    caches: Sequence[SequenceCache],
    rows: Sequence[int],
    *,
    is_first: bool = False,
) -> Step:
    """The step of a rank, with all commands that wait in its log.

    A rank whose layers are the first ones gets what the batch consists of.
    """
    ends = batch.attention[0].attention_ends if batch.attention else None
    commands = [rank.log.popleft() for _ in range(len(rank.log))]
    return Step(
        number,
        commands,
        [
            SequenceStep(
                context - (span.stop - span.start),
                span.stop - span.start,
                length,
                tables_of(cache.tables),
                [state.id for state in _states(cache, rank)],
            )
            for cache, (span, context), length in zip(
                caches, batch.queries, batch.rope_lengths, strict=True
            )
        ],
        int64_bytes(batch.positions),
        None if ends is None else int64_bytes(ends),
        list(rows),
        int64_bytes(batch.token_ids) if is_first else b"",
        b"" if is_first else _own_inputs(rank, batch),
        [
            StepImage(int64_bytes(image.rows), image.features.shape[1])
            for image in batch.images
            if is_first
        ],
        len(batch.scored_rows),
    )


def _states(cache: SequenceCache, rank: RemoteRank) -> list[RemoteState]:
    """Its states of a sequence, in the order of its caches."""
    states = (each for each in cache.layers if isinstance(each, RemoteState))
    return [each for each in states if each.log is rank.log]


def _own_inputs(rank: RemoteRank, batch: ForwardBatch) -> bytes:
    """The inputs of its layers (N, layers, size) as float32."""
    if batch.layer_inputs is None:
        return b""
    own = batch.layer_inputs[:, rank.layers.start : rank.layers.stop]
    return own.to("cpu", torch.float32).contiguous().numpy().tobytes()


def int64_bytes(values: Tensor) -> bytes:
    return values.to("cpu", torch.int64).contiguous().numpy().tobytes()
