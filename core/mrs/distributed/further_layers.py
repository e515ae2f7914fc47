"""The layers of all other ranks, for the decoder of the head."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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


class RemoteLayers:
    """Sends hidden states to the next rank, and waits for those of the last one.

    A step whose output nobody wants is not waited for, so that the chunks of a prompt follow each
    other through the ranks.
    """

    def __init__(
        self,
        ranks: Sequence[RemoteRank],
        right: Channel,
        left: Channel,
        fail: Callable[[Exception], MrsError],
    ) -> None:
        """`fail` is called with an error of a neighbour's connection, and returns the reason."""
        self._ranks = ranks
        self._right = right
        self._left = left
        self._fail = fail
        self._number = 0
        self._lock = threading.Lock()

    def add_caches(self, builder: CacheBuilder) -> None:
        for rank in self._ranks:
            log = rank.log
            log.clear()
            groups = [
                _add(builder, log, *each) for each in zip(rank.layers, rank.caches, strict=True)
            ]
            log.append(OpenSpace(groups))

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


def _add(builder: CacheBuilder, log: Log, layer: int, info: LayerCacheInfo) -> int:
    """Declare the cache of a layer; returns its group of block tables, or -1."""
    if info.kind == "blocks":
        blocks: PagedKV = RemoteBlocks(log, layer, info.size_bytes)  # type: ignore[assignment]
        return builder.add_paged(blocks, info.window)
    builder.add(lambda: RemoteState(log, layer, info.size_bytes))
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
