"""The block table of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mrs.cache.block_pool import BlockPool
from mrs.cache.layer_cache import MemoryTally
from mrs.plan.memory.cache_size import blocks_of


@dataclass(frozen=True)
class SharedBlocks:
    """References to adjacent blocks of a sequence; `index` is the number of the first one.

    Only the tokens from `first` on count.
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

    If the layers have a sliding window, blocks before it are released, and the table has block 0
    instead of them.
    """

    is_state = False

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        #: The first token of which the table has the block; it has those of all later ones.
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
    def num_blocks(self) -> int:
        return len(self._blocks) - self._first

    def reserve(self, length: int, tokens: int, *, rewindable_to: int | None = None) -> None:
        """Have blocks for `tokens` tokens after the first `length`, to which nobody else writes.

        Blocks before the window of the next token are released, but not those that are needed
        after a rewind to `rewindable_to`.
        """
        size = self.pool.block_tokens
        self.rewind(length)
        if self.pool.window is not None:
            least = length if rewindable_to is None else min(length, rewindable_to)
            self._drop(max(0, least + 1 - self.pool.window) // size)
        if length % size:
            self._own_last(length % size)
        while len(self._blocks) * size < length + tokens:
            self._blocks.append(self.pool.allocate())
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

    def serves(self, start: int, end: int, first: int | None, length: int) -> bool:
        return serves_window(self.lookback, start, end, first, length)

    def can_rewind_to(self, length: int) -> bool:
        """Whether a sequence may go on from its first `length` tokens."""
        return self.lookback is None or self.first_token <= max(0, length - self.lookback)

    def rewind(self, length: int) -> None:
        """Release the blocks after the first `length` tokens."""
        kept = blocks_of(length, self.pool.block_tokens)
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

    def release(self) -> None:
        """Release all blocks."""
        gone, self._blocks, self._first = self._blocks[self._first :], [], 0
        self.first_token = 0
        self.pool.release(gone)

    def _drop(self, first: int) -> None:
        """Release the blocks before number `first`."""
        gone = self._blocks[self._first : first]
        self._blocks[self._first : self._first + len(gone)] = [0] * len(gone)
        self._first += len(gone)
        self.first_token = max(self.first_token, self._first * self.pool.block_tokens)
        self.pool.release(gone)

    def _own_last(self, filled: int) -> None:
        """Copy the last block if another sequence wrote after its first `filled` tokens."""
        last = self._blocks[-1]
        if not self._is_shared(last, filled):
            return
        # What is forgotten to have a free block may be what this one is shared with.
        self.pool.find_free()
        if self._is_shared(last, filled):
            self._blocks[-1] = self.pool.copy(last)
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
