"""The layers of all other ranks, for the decoder of the head."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.sequence_cache import SequenceCache
from mrs.distributed.channel import Channel
from mrs.distributed.hidden_states import receive_hidden, send_hidden
from mrs.distributed.layer_caches import Log, RemoteBlocks, RemoteState, tables_of
from mrs.distributed.link import Link
from mrs.distributed.messages import LayerCacheInfo, OpenSpace, SequenceStep, Step
from mrs.errors import MrsError
from mrs.kernels.paged import PagedKV
from mrs.model.batch import ForwardBatch


@dataclass
class RemoteRank:
    """The layers of one rank, in order."""

    link: Link
    layers: range
    caches: Sequence[LayerCacheInfo]
    log: Log = field(default_factory=deque)
    groups: Sequence[int] = ()
    blocks: list[RemoteBlocks] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all caches."""
        self.log.clear()
        self.blocks.clear()

    def new_blocks(self, layer: int, info: LayerCacheInfo) -> PagedKV:
        self.blocks.append(RemoteBlocks(self.log, layer, info.size_bytes))
        return self.blocks[-1]  # type: ignore[return-value]

    def open(self, groups: Sequence[int]) -> None:
        """Have caches of these groups of block tables."""
        self.groups = groups
        self.log.append(OpenSpace(list(groups)))

    def take_over(self, link: Link) -> None:
        """Another process takes the place of this one: its caches are as large, and empty."""
        self.link = link
        self.log.clear()
        self.log.append(OpenSpace(list(self.groups)))
        for each in self.blocks:
            each.resize(each.count)


class Neighbours(NamedTuple):
    """All ranks, and the connections to the next and from the last one."""

    ranks: Sequence[RemoteRank]
    right: Channel
    left: Channel


class RemoteLayers:
    """Sends hidden states to the next rank, and waits for those of the last one.

    A step whose output nobody wants is not waited for, so that the chunks of a prompt follow each
    other through the ranks.
    """

    def __init__(self, neighbours: Neighbours, fail: Callable[[Exception], Exception]) -> None:
        """`fail` is called with an error of a connection, and returns what a step raises."""
        self._ranks, self._right, self._left = neighbours
        self._fail = fail
        self._number = 0

    def take_over(self, fresh: Neighbours) -> None:
        """Go on with other processes, which have the layers of those before and empty caches."""
        for rank, new in zip(self._ranks, fresh.ranks, strict=True):
            rank.take_over(new.link)
        _, self._right, self._left = fresh

    def add_caches(self, builder: CacheBuilder) -> None:
        for rank in self._ranks:
            rank.clear()
            rank.open(
                [_add(builder, rank, *each) for each in zip(rank.layers, rank.caches, strict=True)]
            )

    def __call__(
        self,
        x: Tensor,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        rows: Sequence[int],
    ) -> Tensor:
        self._number += 1
        try:
            for rank in self._ranks:
                rank.link.doing = f"in step {self._number}"
                rank.link.send(step_of(rank, self._number, batch, caches, rows))
            send_hidden(self._right, self._number, x)
            if not len(rows):
                return x[:0]
            return receive_hidden(self._left, self._number, (len(rows), x.shape[1]))
        except (OSError, EOFError, MrsError) as error:
            raise self._fail(error) from error


def _add(builder: CacheBuilder, rank: RemoteRank, layer: int, info: LayerCacheInfo) -> int:
    """Declare the cache of a layer; returns its group of block tables, or -1."""
    if info.kind == "blocks":
        return builder.add_paged(rank.new_blocks(layer, info), info.window)
    builder.add(lambda: RemoteState(rank.log, layer, info.size_bytes))
    return -1


def step_of(
    rank: RemoteRank,
    number: int,
    batch: ForwardBatch,
    caches: Sequence[SequenceCache],
    rows: Sequence[int],
    tokens: bytes = b"",
) -> Step:
    """The step of a rank, with all commands that wait in its log."""
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
                [layer.id for layer in _states(cache, rank.layers)],
            )
            for cache, (span, context), length in zip(
                caches, batch.queries, batch.rope_lengths, strict=True
            )
        ],
        int64_bytes(batch.positions),
        None if ends is None else int64_bytes(ends),
        list(rows),
        tokens,
    )


def _states(cache: SequenceCache, layers: range) -> list[RemoteState]:
    return [each for each in (cache.layers[n] for n in layers) if isinstance(each, RemoteState)]


def int64_bytes(values: Tensor) -> bytes:
    return values.to("cpu", torch.int64).contiguous().numpy().tobytes()
