"""Fixed-size blocks of keys and values, with reference counts."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch

from mrs.cache.rest_slots import RestSlots
from mrs.kernels.paged import PagedKV
from mrs.request import BLOCK_TOKENS


class BlockPool:
    """The blocks of the layers that keep the same tokens of a sequence.

    A block has space for `block_tokens` tokens in each of `layers`. Several sequences may refer to
    a block, and only one of them appends to it: `filled` says how many of its tokens are written,
    and a sequence that goes on from fewer needs a copy. The lowest free blocks are allocated
    first, so that memory that was never needed stays untouched. If none is free, `forget` is
    called, which frees blocks of the prefix cache until it returns False; then the pool grows. The
    same goes for the slots of `rests`.
    """

    def __init__(
        self,
        layers: Sequence[PagedKV] = (),
        *,
        blocks: int = 0,
        slots: int = 0,
        block_tokens: int = BLOCK_TOKENS,
        window: int | None = None,
    ) -> None:
        self.layers = layers
        self.block_tokens = block_tokens
        self.window = window
        self.forget: Callable[[], bool] | None = None
        self.filled: list[int] = []
        self._references: list[int] = []
        self._free: list[int] = []
        self.rests = RestSlots(layers)
        self._grow(blocks, slots if self.rests.is_needed else 0)

    @property
    def count(self) -> int:
        """All blocks."""
        return len(self._references)

    @property
    def used(self) -> int:
        """Blocks with at least one reference."""
        return self.count - len(self._free)

    def block_bytes(self) -> Counter[torch.device]:
        """Bytes of a block in all layers, by device."""
        sizes: Counter[torch.device] = Counter()
        for layer in self.layers:
            sizes[layer.device] += layer.block_bytes
        return sizes

    def allocated_bytes(self) -> Counter[torch.device]:
        """Bytes of all blocks and slots of all layers, by device."""
        sizes: Counter[torch.device] = Counter()
        for layer in self.layers:
            sizes[layer.device] += self.count * layer.block_bytes
            sizes[layer.device] += self.rests.count * layer.slot_bytes
        return sizes

    def references(self, block: int) -> int:
        return self._references[block]

    def allocate(self) -> int:
        """A block with one reference, the caller's."""
        if not self.find_free():
            self._grow(self.count + max(self.count // 4, 1), self.rests.count)
        block = heapq.heappop(self._free)
        self._references[block] = 1
        self.filled[block] = 0
        return block

    def find_free(self) -> bool:
        """Whether there is a free block, after forgetting others if need be."""
        while not self._free and self.forget is not None and self.forget():
            pass
        return bool(self._free)

    def hold_rests(self, block: int) -> None:
        """Let a block have rests until `rests.let_go`, if its layers are quantized."""
        if not self.rests.is_needed:
            return
        while not self.rests.has(block) and not self.rests.find_free():
            if self.forget is None or not self.forget():
                self._grow(self.count, self.rests.count + max(self.rests.count // 4, 1))
        self.rests.hold(block)

    def retain(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks`."""
        for block in blocks:
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Remove a reference from each of `blocks`; those without any are free."""
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                self.rests.drop(block)
                heapq.heappush(self._free, block)

    def copy(self, block: int) -> int:
        """A new block with the same contents, whose rests the caller holds."""
        new = self.allocate()
        self.hold_rests(new)
        for layer in self.layers:
            layer.copy_block(block, new)
        self.filled[new] = self.filled[block]
        return new

    def _grow(self, blocks: int, slots: int) -> None:
        """Resize one layer after another, so that memory has at most one of them twice."""
        for layer in self.layers:
            layer.resize(blocks, slots)
        self.rests.add(slots)
        new = range(self.count, blocks)
        self._references += [0] * len(new)
        self.filled += [0] * len(new)
        for block in new:
            heapq.heappush(self._free, block)
