"""The contract of what one layer keeps of one sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from mrs.cache.block_pool import BlockPool


class TensorShape(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]


class MemoryTally:
    """Bytes by device, and how often blocks are referred to."""

    def __init__(self) -> None:
        self.own_bytes: Counter[torch.device] = Counter()
        self.blocks: Counter[tuple[BlockPool, int]] = Counter()

    def total_bytes(self) -> Counter[torch.device]:
        """Bytes by device, without those of blocks that others refer to, too."""
        totals = Counter(self.own_bytes)
        own = Counter(
            pool for (pool, block), count in self.blocks.items() if pool.references(block) == count
        )
        for pool, blocks in own.items():
            for device, size_bytes in pool.block_bytes().items():
                totals[device] += blocks * size_bytes
        return totals


@dataclass(frozen=True)
class LayerSlice:
    """What a layer keeps of a stretch of tokens, the first of which is `first`, by name."""

    first: int
    tensors: Mapping[str, Tensor]

    def on(self, device: torch.device) -> LayerSlice:
        """The same on a device, with no other memory kept alive by it."""
        return replace(self, tensors={n: _moved(t, device) for n, t in self.tensors.items()})

    def split(self, at: int) -> tuple[LayerSlice | None, LayerSlice | None]:
        """What is kept of the tokens before `at`, and of those after: here all in one piece."""
        return (self, None) if self.first < at else (None, self)

    def release(self) -> None:
        """Nobody else counts who refers to it."""

    def count(self, tally: MemoryTally) -> None:
        for tensor in self.tensors.values():
            tally.own_bytes[tensor.device] += tensor.nbytes


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if tensor.device != device:
        return tensor.to(device)
    is_whole = tensor.nbytes == tensor.untyped_storage().nbytes()
    return tensor if is_whole else tensor.clone(memory_format=torch.contiguous_format)


class SharedPart(Protocol):
    """What a prefix tree keeps of a stretch of tokens for one part of a cache."""

    @property
    def first(self) -> int:
        """The first token that something is kept of."""

    def split(self, at: int) -> tuple[SharedPart | None, SharedPart | None]:
        """What is kept of the tokens before `at`, and of those after."""

    def release(self) -> None:
        """This is not referred to any longer."""

    def count(self, tally: MemoryTally) -> None:
        """Add what memory this refers to."""


class CacheRules(Protocol):
    """What a part of a cache needs of some tokens, whichever sequence it belongs to."""

    @property
    def is_state(self) -> bool:
        """Whether this is one state, which is changed by every token."""

    @property
    def keeps_all(self) -> bool:
        """Whether what is kept of some tokens is the same whatever comes after them."""

    def serves(self, start: int, end: int, first: int | None, length: int) -> bool:
        """As `LayerCache.serves`."""


class CachePart(Protocol):
    """A part of a sequence's cache of which a prefix tree keeps something."""

    @property
    def rules(self) -> CacheRules:
        """What holds for this part of all sequences; keeps no memory of one alive."""

    def can_rewind_to(self, length: int) -> bool:
        """Whether the state after the first `length` tokens can be had again."""

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens; ValueError if that is lost."""

    def share(self, start: int, end: int) -> SharedPart | None:
        """What is kept of the tokens `start` to `end`, for others to share; None: nothing."""

    def adopt(self, length: int, pieces: Sequence[Any]) -> None:
        """Make an empty part one of `length` tokens, from what adjacent stretches shared."""


@runtime_checkable
class LayerCache(Protocol):
    """What one layer keeps of one sequence, whatever kind of layer it is.

    A sequence's tokens are numbered from 0. What is kept of some of them can be exported, and an
    empty cache be restored from what was exported of adjacent stretches: that need not be all,
    `serves` tells.
    """

    @property
    def nbytes(self) -> int:
        """Bytes in use on `device`."""

    @property
    def device(self) -> torch.device: ...

    @property
    def is_state(self) -> bool:
        """Whether this is one state, which is changed by every token."""

    @property
    def keeps_all(self) -> bool:
        """Whether what is kept of some tokens is the same whatever comes after them."""

    def advance(self, tokens: int) -> None:
        """Count tokens whose numbers the layer has taken up."""

    def can_rewind_to(self, length: int) -> bool:
        """Whether the state after the first `length` tokens can be had again."""

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens; ValueError if that is lost."""

    def export(self, start: int, end: int) -> LayerSlice | None:
        """What is kept of the tokens `start` to `end`, None if it is nothing.

        Later tokens do not change it. A state is what is kept of its last token.
        """

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        """Make an empty cache one of `length` tokens: copies what `export` gave of adjacent
        stretches, from the first token to `length` or beyond.
        """

    def serves(self, start: int, end: int, first: int | None, length: int) -> bool:
        """Whether a slice of the tokens `start` to `end` that begins at `first` (None: there is
        none) has all of these tokens that a sequence needs to go on from `length`.
        """

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        """Whether tensors of these shapes could be a slice of the tokens `first` to `end`."""
