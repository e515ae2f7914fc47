"""Which blocks hold the tokens of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mrs.cache.block_pool import BlockPool
from mrs.cache.layer import MemoryTally
from mrs.interrupts import interrupts_held
from mrs.sizes.blocks import blocks_of


@dataclass(frozen=True)
class SharedBlocks:
    """References to the blocks `index` and after of a sequence; tokens count from `first` on."""

    pool: BlockPool
    index: int
    blocks: tuple[int, ...]
    first: int

    def split(self, at: int) -> tuple[SharedBlocks | None, SharedBlocks | None]:
        """What holds the tokens before `at`, and what holds those after; both refer to the block
        that holds some of either.
        """
        size = self.pool.block_tokens
        if at <= self.first:
            return None, self
        left = self.blocks[: blocks_of(at, size) - self.index]
        right = self.blocks[at // size - self.index :]
        if at % size:
            self.pool.retain(right[:1])
        return (
            replace(self, blocks=left),
            SharedBlocks(self.pool, at // size, right, at) if right else None,
        )

    def release(self) -> None:
        self.pool.release(self.blocks)

    def count(self, tally: MemoryTally) -> None:
        tally.blocks.update((self.pool, block) for block in self.blocks)


class BlockTable:
    """The blocks of a sequence in the order of its tokens, in all layers of one pool.

    Where layers have a window, the blocks before it are given back; block 0 stands in their place.
    """

    is_state = False

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        #: The first token that is still there; all after it are, too.
        self.first_token = 0
        self._first = 0
        self._blocks: list[int] = []

    @property
    def rules(self) -> BlockTable:
        return BlockTable(self.pool)

    @property
    def keeps_all(self) -> bool:
        return self.lookback is None

    @property
    def lookback(self) -> int | None:
        """How many of the last tokens the next one attends to; None for all of them."""
        return None if self.pool.window is None else self.pool.window - 1

    @property
    def held_blocks(self) -> int:
        return len(self._blocks) - self._first

    def reserve(self, length: int, tokens: int) -> None:
        """Have blocks for `tokens` tokens after the first `length`, to which nobody else writes.

        Blocks that only tokens before their window attend to are given back.
        """
        size = self.pool.block_tokens
        with interrupts_held():
            self.rewind(length)
            if self.pool.window is not None:
                self._drop(max(0, length + 1 - self.pool.window) // size)
            if length % size:
                self._own_last(length % size)
            while len(self._blocks) * size < length + tokens:
                self._blocks.append(self.pool.allocate())
            for index in range(length // size, len(self._blocks)):
                self.pool.filled[self._blocks[index]] = min(length + tokens - index * size, size)

    def slots(self, start: int, end: int) -> Tensor:
        """Where the tokens `start` to `end` are written, (T,) int64."""
        size = self.pool.block_tokens
        positions = torch.arange(start, end)
        blocks = torch.tensor(self._blocks[start // size :], dtype=torch.int64)
        return blocks[positions // size - start // size] * size + positions % size

    def row(self) -> list[int]:
        """The blocks by the places of their tokens."""
        return self._blocks

    def share(self, start: int, end: int) -> SharedBlocks | None:
        """References to the blocks of the tokens `start` to `end`, as far as they are there.

        Of blocks that are not whole from their beginning on none.
        """
        size = self.pool.block_tokens
        first = max(start, blocks_of(self.first_token, size) * size)
        if first >= end:
            return None
        blocks = tuple(self._blocks[first // size : blocks_of(end, size)])
        self.pool.retain(blocks)
        return SharedBlocks(self.pool, first // size, blocks, first)

    def adopt(self, length: int, pieces: Sequence[SharedBlocks | None]) -> None:
        """Let this empty table refer to the blocks of adjacent stretches of tokens, up to `length`.

        Where two stretches have a block for the same tokens, that of the later one has all.
        """
        size = self.pool.block_tokens
        needed = 0 if self.lookback is None else max(0, length - self.lookback)
        found: dict[int, int] = {}
        for piece in pieces:
            if piece is not None:
                found.update(enumerate(piece.blocks, piece.index))
        kept = range(needed // size, blocks_of(length, size))
        with interrupts_held():
            self.pool.retain(found[index] for index in kept)
            self._blocks = [0] * kept.start + [found[index] for index in kept]
            self._first = kept.start
            self.first_token = kept.start * size

    def serves(self, start: int, end: int, first: int | None, length: int) -> bool:
        return serves_window(self.lookback, start, end, first, length)

    def can_rewind_to(self, length: int) -> bool:
        """Whether a sequence may go on from its first `length` tokens."""
        return self.lookback is None or self.first_token <= max(0, length - self.lookback)

    def rewind(self, length: int) -> None:
        """Give back what comes after the first `length` tokens."""
        kept = blocks_of(length, self.pool.block_tokens)
        gone, self._blocks[kept:] = self._blocks[max(kept, self._first) :], []
        self.pool.release(gone)

    def open(self, length: int) -> None:
        """Give this empty table blocks of its own for `length` tokens, or for those of them that
        the window of the next token needs.
        """
        size = self.pool.block_tokens
        with interrupts_held():
            if self.lookback is not None:
                self.first_token = max(0, length - self.lookback)
            self._first = self.first_token // size
            self._blocks = [0] * self._first
            for index in range(self._first, blocks_of(length, size)):
                self._blocks.append(self.pool.allocate())
                self.pool.filled[self._blocks[-1]] = min(length - index * size, size)

    def release(self) -> None:
        """Give all blocks back."""
        with interrupts_held():
            gone, self._blocks, self._first = self._blocks[self._first :], [], 0
            self.first_token = 0
            self.pool.release(gone)

    def _drop(self, first: int) -> None:
        """Give back the blocks before `first`."""
        gone = self._blocks[self._first : first]
        self._blocks[self._first : self._first + len(gone)] = [0] * len(gone)
        self._first += len(gone)
        self.first_token = max(self.first_token, self._first * self.pool.block_tokens)
        self.pool.release(gone)

    def _own_last(self, filled: int) -> None:
        """Copy the last block, of which `filled` tokens count, if others wrote behind them."""
        last = self._blocks[-1]
        if self.pool.filled[last] > filled and self.pool.references(last) > 1:
            self._blocks[-1] = self.pool.copy(last)
            self.pool.release((last,))


def serves_window(
    lookback: int | None, start: int, end: int, first: int | None, length: int
) -> bool:
    """`LayerCache.serves` where the last `lookback` tokens are needed, or all (None)."""
    needed = 0 if lookback is None else max(0, length - lookback)
    return end <= needed or (first is not None and first <= max(start, needed))
