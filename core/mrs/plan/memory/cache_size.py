"""Sizes of a paged KV cache in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mrs.request import BLOCK_TOKENS


def blocks_of(tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """Blocks for the first `tokens` tokens of a sequence."""
    return -(-tokens // block_tokens)


def window_blocks(
    tokens: int, window: int, chunk_tokens: int, block_tokens: int = BLOCK_TOKENS
) -> int:
    """Most blocks of a sliding-window layer, for a sequence of `tokens`.

    They store a chunk of new tokens and the window before its first token, wherever it starts.
    """
    visible = window - 1 + chunk_tokens
    return min(blocks_of(tokens, block_tokens), blocks_of(visible - 1, block_tokens) + 1)


@dataclass(frozen=True)
class CacheSize:
    """The load that a KV cache is sized for: `sequences` of `tokens` each, prompts in chunks.

    `pool_blocks` fixes the number of blocks of layers without a sliding window; all sequences
    share them. Without it, these layers start with blocks for these sequences and grow as needed.
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
        """A pool of `blocks` for sequences of `tokens` each, or one that fills it."""
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
    def max_sequences(self) -> int:
        """Sequences of the planned length that fit at once in layers without a sliding window."""
        return self.blocks() // blocks_of(self.tokens, self.block_tokens)

    def window_of(self, window: int | None) -> int | None:
        """The window, or None if every planned token fits in it."""
        if window is None or window + self.chunk_tokens >= self.tokens:
            return None
        return window

    def blocks(self, window: int | None = None) -> int:
        """Blocks of a layer; `window` is a result of `window_of`."""
        most = self.pool_blocks
        if most is None:
            most = self.sequences * blocks_of(self.tokens, self.block_tokens)
        if window is None:
            return most
        return min(most, self.sequences * self._sequence_blocks(self.tokens, window))

    def rest_tokens(self, window: int | None = None) -> int:
        """Tokens of a quantized layer that have rests (`mrs.kernels.kv_codes`).

        Those of each sequence's first block, of its last one and of one before that, to which a
        draft goes back; and of a chunk. `window` is a result of `window_of`.
        """
        chunk = blocks_of(self.chunk_tokens) * BLOCK_TOKENS
        most = 3 * self.sequences * BLOCK_TOKENS + chunk
        return min(self.blocks(window) * self.block_tokens, most)

    def fits(
        self, lengths: Sequence[int], *, shared_blocks: int = 0, windows: Iterable[int | None] = ()
    ) -> bool:
        """Whether sequences of these lengths fit at once.

        They share `shared_blocks` in layers without a sliding window. In a pool, which does not
        grow, layers with one of these `windows` must have enough blocks too.
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
