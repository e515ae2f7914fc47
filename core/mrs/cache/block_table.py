"""The block table of one sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mrs.cache.block_pool import BlockPool
from mrs.cache.layer_cache import MemoryTally
from mrs.plan.memory.cache_size import blocks_of


@dataclass(frozen=True)
class SharedBlocks:
    """References to adjacent blocks of a sequence; `index` is the number of the first one.

    Only the tokens from `first` on count. The rests of block 0 of the sequence are held.
    """

    pool: BlockPool
    index: int
    blocks: tuple[int, ...]
    first: int

    def split(self, at: int) -> tuple[SharedBlocks | None, SharedBlocks | None]:
        """The blocks of the tokens before `at`, and those of the others.

        Both refer to a block that has tokens of either.
        """
        size = self.pool.block_tokens
        if at <= self.first:
            return None, self
        left = self.blocks[: blocks_of(at, size) - self.index]
        right = self.blocks[at // size - self.index :]
        if at % size:
            self.pool.retain(right[:1])
            if at < size:
                self.pool.hold_rests(right[0])
        return (
            replace(self, blocks=left),
            SharedBlocks(self.pool, at // size, right, at) if right else None,
        )

    def resumable(self, length: int) -> int:
        """The largest length up to this one at which the rests of the last block are there."""
        size = self.pool.block_tokens
        place = length // size - self.index
        if length % size and 0 <= place < len(self.blocks):
            return length if self.pool.rests.has(self.blocks[place]) else length - length % size
        return length

    def release(self) -> None:
        if self.index == 0 and self.blocks:
            self.pool.rests.let_go(self.blocks[0])
        self.pool.release(self.blocks)

    def count(self, tally: MemoryTally) -> None:
        tally.blocks.update((self.pool, block) for block in self.blocks)


class BlockTable:
    """The blocks of a sequence in the order of its tokens, in all layers of one pool.

    If the layers have a sliding window, blocks before it are released, and the table has block 0
    instead of them. The table holds the rests of the sequence's first block, and of those that it
    may still write to.
    """

    is_state = False

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        #: The first token of which the table has the block; it has those of all later ones.
        self.first_token = 0
        self._first = 0
        self._blocks: list[int] = []
        #: The indices of the blocks whose rests it holds.
        self._held: set[int] = set()

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
    def num_blocks(self) -> int:
        return len(self._blocks) - self._first

    def reserve(self, length: int, tokens: int, *, rewindable_to: int | None = None) -> None:
        """Have blocks for `tokens` tokens after the first `length`, to which nobody else writes.

        Blocks before the window of the next token are released, but not those that are needed
        after a rewind to `rewindable_to`.
        """
        size = self.pool.block_tokens
        self.rewind(length)
        least = length if rewindable_to is None else min(length, rewindable_to)
        if self.pool.window is not None:
            self._drop(max(0, least + 1 - self.pool.window) // size)
        self._let_go(index for index in self._held if 0 < index < least // size)
        if length % size:
            self._own_last(length % size)
        while len(self._blocks) * size < length + tokens:
            self._blocks.append(self.pool.allocate())
            self._hold(len(self._blocks) - 1)
        for index in range(length // size, len(self._blocks)):
            self.pool.filled[self._blocks[index]] = min(length + tokens - index * size, size)

    def append(self, tokens: int) -> None:
        """Count tokens that were written after the reserved ones, in the last block."""
        self.pool.filled[self._blocks[-1]] += tokens

    def slots(self, start: int, end: int) -> list[int]:
        """Where in the pool the tokens `start` to `end` are written."""
        size = self.pool.block_tokens
        return [self._blocks[at // size] * size + at % size for at in range(start, end)]

    def row(self) -> list[int]:
        """The numbers of the blocks, in the order of their tokens."""
        return self._blocks

    def held_blocks(self) -> list[int]:
        """The blocks that it refers to."""
        return self._blocks[self._first :]

    def whole_blocks(self, length: int) -> list[int]:
        """The blocks that the first `length` tokens fill, as far as they are there."""
        return self._blocks[self._first : length // self.pool.block_tokens]

    def share(self, start: int, end: int) -> SharedBlocks | None:
        """References to the blocks of the tokens `start` to `end`, as far as the table has them.

        A block whose first tokens are missing is left out.
        """
        size = self.pool.block_tokens
        first = max(start, blocks_of(self.first_token, size) * size)
        if first >= end:
            return None
        blocks = tuple(self._blocks[first // size : blocks_of(end, size)])
        self.pool.retain(blocks)
        if first < size:
            self.pool.hold_rests(blocks[0])
        return SharedBlocks(self.pool, first // size, blocks, first)

    def adopt(self, length: int, pieces: Sequence[SharedBlocks | None]) -> None:
        """Let this empty table refer to the blocks of adjacent token ranges, up to `length`.

        If two ranges have a block for the same tokens, the later one's has all of them.
        """
        size = self.pool.block_tokens
        needed = 0 if self.lookback is None else max(0, length - self.lookback)
        blocks: dict[int, int] = {}
        for piece in pieces:
            if piece is not None:
                blocks.update(enumerate(piece.blocks, piece.index))
        kept = range(needed // size, blocks_of(length, size))
        self.pool.retain(blocks[index] for index in kept)
        self._blocks = [0] * kept.start + [blocks[index] for index in kept]
        self._first = kept.start
        self.first_token = kept.start * size
        self._hold_ends(length)

    def serves(self, start: int, end: int, first: int | None, length: int) -> bool:
        return serves_window(self.lookback, start, end, first, length)

    def can_rewind_to(self, length: int) -> bool:
        """Whether a sequence may go on from its first `length` tokens."""
        if self.lookback is not None and self.first_token > max(0, length - self.lookback):
            return False
        return self.whole(length) == length or self.pool.rests.has(
            self._blocks[length // self.pool.block_tokens]
        )

    def whole(self, length: int) -> int:
        """The largest length up to this one after which no rests of a last block are needed."""
        return length - length % self.pool.block_tokens if self.pool.rests.is_needed else length

    def rewind(self, length: int) -> None:
        """Release the blocks after the first `length` tokens."""
        kept = blocks_of(length, self.pool.block_tokens)
        self._let_go(index for index in self._held if index >= kept)
        if length % self.pool.block_tokens:
            self._hold(kept - 1)
        gone, self._blocks[kept:] = self._blocks[max(kept, self._first) :], []
        self.pool.release(gone)

    def open(self, length: int) -> None:
        """Allocate blocks for `length` tokens to this empty table.

        With a window, only for the tokens that the next one attends to.
        """
        size = self.pool.block_tokens
        if self.lookback is not None:
            self.first_token = max(0, length - self.lookback)
        self._first = self.first_token // size
        self._blocks = [0] * self._first
        for index in range(self._first, blocks_of(length, size)):
            self._blocks.append(self.pool.allocate())
            self.pool.filled[self._blocks[-1]] = min(length - index * size, size)
        self._hold_ends(length)

    def release(self) -> None:
        """Release all blocks."""
        self._let_go(self._held)
        gone, self._blocks, self._first = self._blocks[self._first :], [], 0
        self.first_token = 0
        self.pool.release(gone)

    def _drop(self, first: int) -> None:
        """Release the blocks before number `first`."""
        gone = self._blocks[self._first : first]
        self._let_go(index for index in self._held if index < first)
        self._blocks[self._first : self._first + len(gone)] = [0] * len(gone)
        self._first += len(gone)
        self.first_token = max(self.first_token, self._first * self.pool.block_tokens)
        self.pool.release(gone)

    def _hold_ends(self, length: int) -> None:
        """Hold the rests that the token after the first `length` ones attends to."""
        size = self.pool.block_tokens
        if self._first == 0 and self._blocks:
            self._hold(0)
        if length % size:
            self._hold(length // size)

    def _hold(self, index: int) -> None:
        if index not in self._held:
            self.pool.hold_rests(self._blocks[index])
            self._held.add(index)

    def _let_go(self, indices: Iterable[int]) -> None:
        for index in [*indices]:
            self.pool.rests.let_go(self._blocks[index])
            self._held.remove(index)

    def _own_last(self, filled: int) -> None:
        """Copy the last block if another sequence wrote after its first `filled` tokens."""
        last = self._blocks[-1]
        if not self._is_shared(last, filled):
            return
        # What is forgotten to have a free block may be what this one is shared with.
        self.pool.find_free()
        if self._is_shared(last, filled):
            self._blocks[-1] = self.pool.copy(last)
            self.pool.rests.let_go(last)
            self.pool.release((last,))

    def _is_shared(self, block: int, filled: int) -> bool:
        """Whether others refer to a block and have written behind its first `filled` tokens."""
        return self.pool.filled[block] > filled and self.pool.references(block) > 1


def serves_window(
    lookback: int | None, start: int, end: int, first: int | None, length: int
) -> bool:
    """`LayerCache.serves` where the last `lookback` tokens are needed, or all (None)."""
    needed = 0 if lookback is None else max(0, length - lookback)
    return end <= needed or (first is not None and first <= max(start, needed))
