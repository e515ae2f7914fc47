"""The interface of the caches of one layer and one sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from mrs.cache.block_pool import BlockPool


class TensorShape(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]


class MemoryTally:
    """Bytes by device, and how many references to each block were counted."""

    def __init__(self) -> None:
        self.own_bytes: Counter[torch.device] = Counter()
        self.blocks: Counter[tuple[BlockPool, int]] = Counter()

    def total_bytes(self) -> Counter[torch.device]:
        """Bytes by device, without blocks that others refer to as well."""
        return self._with_blocks(
            pool for (pool, block), count in self.blocks.items() if pool.references(block) == count
        )

    def most_bytes(self) -> Counter[torch.device]:
        """Bytes by device, as if nobody else referred to any block."""
        return self._with_blocks(pool for pool, _ in self.blocks)

    def _with_blocks(self, pools: Iterable[BlockPool]) -> Counter[torch.device]:
        """The own bytes and those of blocks, of which `pools` names the pool of each."""
        totals = Counter(self.own_bytes)
        for pool, blocks in Counter(pools).items():
            for device, size_bytes in pool.block_bytes().items():
                totals[device] += blocks * size_bytes
        return totals


@dataclass(frozen=True)
class LayerSlice:
    """What a layer caches of adjacent tokens from `first` on: tensors by name."""

    first: int
    tensors: Mapping[str, Tensor]

    def on(self, device: torch.device) -> LayerSlice:
        """A copy on a device, in tensors that are no views of larger ones."""
        return replace(self, tensors={n: _moved(t, device) for n, t in self.tensors.items()})

    def split(self, at: int) -> tuple[LayerSlice | None, LayerSlice | None]:
        """The parts before and from token `at`; here one of them has everything."""
        return (self, None) if self.first < at else (None, self)

    def release(self) -> None:
        """Tensors have no reference counts."""

    def count(self, tally: MemoryTally) -> None:
        for tensor in self.tensors.values():
            tally.own_bytes[tensor.device] += tensor.nbytes


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if tensor.device != device:
        return tensor.to(device)
    is_whole = tensor.nbytes == tensor.untyped_storage().nbytes()
    return tensor if is_whole else tensor.clone(memory_format=torch.contiguous_format)


class SharedPart(Protocol):
    """What the radix tree stores of adjacent tokens for one part of a cache."""

    @property
    def first(self) -> int:
        """The first token that has anything stored."""

    def split(self, at: int) -> tuple[SharedPart | None, SharedPart | None]:
        """The parts before and from token `at`."""

    def release(self) -> None:
        """Give up the references to blocks."""

    def count(self, tally: MemoryTally) -> None:
        """Add the memory of this to a tally."""


class CacheRules(Protocol):
    """What a part of a cache needs of earlier tokens, for all sequences alike."""

    @property
    def is_state(self) -> bool:
        """Whether this is a recurrent state, which every token changes."""

    @property
    def keeps_all(self) -> bool:
        """Whether later tokens leave what is cached of earlier ones as it is."""

    def serves(self, start: int, end: int, first: int | None, length: int) -> bool:
        """As `LayerCache.serves`."""


class CachePart(Protocol):
    """A part of a sequence's cache that the radix tree can share: a block table, or a layer's."""

    @property
    def rules(self) -> CacheRules:
        """The rules of this part for all sequences; they refer to no memory of this one."""

    def can_rewind_to(self, length: int) -> bool:
        """Whether the state after the first `length` tokens can be had again."""

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens; ValueError if that is lost."""

    def share(self, start: int, end: int) -> SharedPart | None:
        """What is cached of the tokens `start` to `end`, to be shared; None if nothing is."""

    def adopt(self, length: int, pieces: Sequence[Any]) -> None:
        """Make an empty part one of `length` tokens, from what adjacent ranges shared."""


@runtime_checkable
class LayerCache(Protocol):
    """The cache of one layer and one sequence, whose tokens are numbered from 0.

    What it has of some tokens can be exported, and an empty cache can be restored from what was
    exported of adjacent ranges. These need not have everything: `serves` tells what is enough.
    """

    @property
    def nbytes(self) -> int:
        """Bytes in use on `device`."""

    @property
    def device(self) -> torch.device: ...

    @property
    def is_state(self) -> bool:
        """Whether this is a recurrent state, which every token changes."""

    @property
    def keeps_all(self) -> bool:
        """Whether later tokens leave what is cached of earlier ones as it is."""

    def export(self, start: int, end: int) -> LayerSlice | None:
        """What is cached of the tokens `start` to `end`; None if nothing is.

        Later tokens do not change it. A state belongs to the last token that it includes.
        """

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        """Make an empty cache one of `length` tokens, by copying.

        `slices` are what `export` returned for adjacent ranges, from token 0 to `length` or beyond.
        """

    def serves(self, start: int, end: int, first: int | None, length: int) -> bool:
        """Whether a sequence can go on from `length` with a slice of the tokens `start` to `end`.

        The slice has those from `first` on; `first` is None if there is no slice.
        """

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        """Whether tensors of these shapes could be a slice of the tokens `first` to `end`."""


class UnpagedLayer(LayerCache, CachePart, Protocol):
    """The cache of a layer that has no blocks."""

    def advance(self, tokens: int) -> None:
        """Count tokens that the layer has added."""

    def mark(self) -> None:
        """Let the next `rewind` come back to this length."""
