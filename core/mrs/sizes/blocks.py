"""How many blocks of a paged KV cache tokens take. No torch: the planner counts with it, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Tokens of a block, unless another size is asked for: as many as attention takes in one step.
BLOCK_TOKENS = 64
#: Sizes of a block that can be asked for. Kernels find a token's block by shifting its position.
BLOCK_SIZES = (8, 16, 32, 64)


def blocks_of(tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """Blocks that hold so many tokens of a sequence, from its first on."""
    return -(-tokens // block_tokens)


def window_blocks(
    tokens: int, window: int, chunk_tokens: int, block_tokens: int = BLOCK_TOKENS
) -> int:
    """Blocks that hold what a chunk of new tokens attends to, wherever it begins.

    Those are the chunk and the window before its first token, of a sequence of `tokens`.
    """
    visible = window - 1 + chunk_tokens
    return min(blocks_of(tokens, block_tokens), blocks_of(visible - 1, block_tokens) + 1)


@dataclass(frozen=True)
class CacheSize:
    """What a KV cache is made for: `sequences` of `tokens` each, prompts in chunks.

    With `pool_blocks`, layers that keep all tokens have exactly so many blocks, which all
    sequences share; without, they have blocks for these sequences and get more when needed.
    """

    tokens: int
    sequences: int
    chunk_tokens: int
    block_tokens: int = BLOCK_TOKENS
    pool_blocks: int | None = None

    @classmethod
    def of_pool(
        cls, blocks: int, tokens: int, chunk_tokens: int, block_tokens: int = BLOCK_TOKENS
    ) -> CacheSize:
        """A pool of so many blocks for sequences of `tokens` each, or one that fills it."""
        pool_tokens = blocks * block_tokens
        tokens = min(tokens, pool_tokens)
        return cls(tokens, blocks_of(pool_tokens, tokens), chunk_tokens, block_tokens, blocks)

    @property
    def is_pool(self) -> bool:
        return self.pool_blocks is not None

    @property
    def total_tokens(self) -> int:
        """Tokens of all sequences together."""
        return self.blocks() * self.block_tokens

    @property
    def most_sequences(self) -> int:
        """How many sequences of the planned length fit at once; layers with a window have room."""
        return self.blocks() // blocks_of(self.tokens, self.block_tokens)

    def window_of(self, window: int | None) -> int | None:
        """None where a window hides none of the tokens that are planned for."""
        if window is None or window + self.chunk_tokens >= self.tokens:
            return None
        return window

    def blocks(self, window: int | None = None) -> int:
        """Blocks of layers with a window as `window_of` gives it."""
        most = self.pool_blocks
        if most is None:
            most = self.sequences * blocks_of(self.tokens, self.block_tokens)
        if window is None:
            return most
        return min(most, self.sequences * self._sequence_blocks(self.tokens, window))

    def has_room(
        self, lengths: Sequence[int], *, shared_blocks: int = 0, windows: Iterable[int | None] = ()
    ) -> bool:
        """Whether sequences of these lengths fit at once.

        They share `shared_blocks` of the layers that keep all tokens. Where the cache does not
        grow, layers with one of the `windows` must have the blocks, too.
        """

        def needed(window: int | None) -> int:
            return sum(self._sequence_blocks(length, window) for length in lengths)

        limited = {*windows} - {None} if self.is_pool else set()
        return needed(None) - shared_blocks <= self.blocks() and all(
            needed(window) <= self.blocks(window) for window in limited
        )

    def _sequence_blocks(self, tokens: int, window: int | None) -> int:
        if window is None:
            return blocks_of(tokens, self.block_tokens)
        return window_blocks(tokens, window, self.chunk_tokens, self.block_tokens)
