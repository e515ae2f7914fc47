"""The caches of layers in other processes, for the head: commands instead of tensors.

The head decides which sequence has which blocks and states. What it decides becomes commands in
the log of the rank that has the layer, which go out with the next step.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mrs.cache.block_table import BlockTable
from mrs.cache.layer_cache import CacheRules, LayerSlice, MemoryTally, TensorShape
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.distributed.protocol.messages import (
    AdoptState,
    CacheCommand,
    CopyBlock,
    Drop,
    NewState,
    ResetState,
    Resize,
    ShareState,
)
from mrs.errors import Unsupported

_CPU = torch.device("cpu")
_ids = itertools.count(1)
#: The commands of one rank that are not sent yet. Any thread may add some.
Log = deque[CacheCommand]


class RemoteBlocks:
    """The blocks of the cache `index` of another process; a `PagedKV` for the pool of blocks."""

    device = _CPU
    tensors: tuple[Tensor, ...] = ()

    def __init__(self, log: Log, index: int, block_bytes: int) -> None:
        self._log = log
        self._index = index
        self.block_bytes = block_bytes
        self.count = 0

    def resize(self, blocks: int) -> None:
        self.count = blocks
        self._log.append(Resize(self._index, blocks))

    def copy_block(self, source: int, target: int) -> None:
        self._log.append(CopyBlock(self._index, source, target))

    def read(self, blocks: Tensor, start: int, end: int) -> tuple[Tensor, ...]:
        raise _not_here()

    def write(self, slots: Tensor, tokens: Sequence[Tensor]) -> None:
        raise _not_here()


class RemoteSnapshot:
    """A copy of a recurrent state in another process, which is dropped with this object."""

    def __init__(self, log: Log, first: int, size_bytes: int) -> None:
        self.first = first
        self.id = next(_ids)
        self._size_bytes = size_bytes
        weakref.finalize(self, log.append, Drop(self.id))

    def split(self, at: int) -> tuple[RemoteSnapshot | None, RemoteSnapshot | None]:
        return (self, None) if self.first < at else (None, self)

    def release(self) -> None:
        """The copy goes with the last reference to this object."""

    def count(self, tally: MemoryTally) -> None:
        tally.own_bytes[_CPU] += self._size_bytes


class RemoteState:
    """The recurrent state of one sequence in the cache `index` of another process."""

    is_state = True
    keeps_all = False
    device = _CPU

    def __init__(self, log: Log, index: int, size_bytes: int) -> None:
        self.id = next(_ids)
        self.length = 0
        self.nbytes = size_bytes
        self.log = log
        self._mark: RemoteSnapshot | None = None
        log.append(NewState(index, self.id))
        weakref.finalize(self, log.append, Drop(self.id))

    @property
    def rules(self) -> CacheRules:
        return RecurrentStateCache

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def mark(self) -> None:
        self._mark = self.share(self.length - 1, self.length)

    def can_rewind_to(self, length: int) -> bool:
        marked = () if self._mark is None else (self._mark.first + 1,)
        return length in (0, self.length, *marked)

    def rewind(self, length: int) -> None:
        mark, self._mark = self._mark, None
        if length == self.length:
            return
        if length == 0:
            self.log.append(ResetState(self.id))
            self.length = 0
        elif mark is not None:
            self.adopt(length, [mark])

    def share(self, start: int, end: int) -> RemoteSnapshot | None:
        if not start < end == self.length:
            return None
        snapshot = RemoteSnapshot(self.log, end - 1, self.nbytes)
        self.log.append(ShareState(self.id, snapshot.id))
        return snapshot

    def adopt(self, length: int, pieces: Sequence[Any]) -> None:
        self.log.append(AdoptState(self.id, length, pieces[-1].id))
        self.length = length

    serves = staticmethod(RecurrentStateCache.serves)

    def export(self, start: int, end: int) -> LayerSlice | None:
        raise _not_here()

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        raise _not_here()

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        return False


def tables_of(tables: Sequence[BlockTable]) -> list[bytes]:
    """The rows of block tables as int32."""
    import numpy as np

    return [np.array(table.row(), np.int32).tobytes() for table in tables]


def _not_here() -> Unsupported:
    return Unsupported("the prefix cache of several processes cannot be stored in a folder")
