"""The cache of one sequence in all layers of a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mrs.cache.block_table import BlockTable
from mrs.cache.layer_cache import CachePart, LayerCache, LayerSlice, SharedPart, UnpagedLayer


class SequenceCache:
    """The layers' caches of one sequence, which have its first `length` tokens.

    `reserve` allocates blocks for new tokens; when all layers have written them, `advance` counts
    them. Only `release` gives all blocks back.
    """

    def __init__(
        self,
        tables: Sequence[BlockTable],
        layers: Sequence[LayerCache],
        unpaged: Sequence[UnpagedLayer],
    ) -> None:
        """`unpaged` are the caches of layers that have no blocks in `tables`."""
        self.length = 0
        self.tables = tables
        self.layers = layers
        #: What the radix tree shares: block tables, and the caches of single layers.
        self.parts: tuple[CachePart, ...] = (*tables, *unpaged)
        self._unpaged = unpaged
        self._marked_length: int | None = None

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    @property
    def has_states(self) -> bool:
        """Whether a layer has a recurrent state, which the next token overwrites."""
        return any(layer.is_state for layer in self.layers)

    @property
    def room(self) -> int:
        """How many of the next tokens are in the same block as the next one."""
        sizes = {table.pool.block_tokens for table in self.tables}
        return min((size - self.length % size for size in sizes), default=sys.maxsize)

    def reserve(self, tokens: int) -> None:
        """Have blocks for `tokens` new tokens."""
        for table in self.tables:
            table.reserve(self.length, tokens, rewindable_to=self._marked_length)

    def advance(self, tokens: int) -> None:
        """Count new tokens, which all layers have written; `reserve` has extended the tables."""
        for layer in self._unpaged:
            layer.advance(tokens)
        self.length += tokens

    def append(self, tokens: int) -> None:
        """Count tokens after reserved ones, which all layers have written in the same block."""
        for table in self.tables:
            table.append(tokens)
        self.advance(tokens)

    def adopt(self, length: int, shared: Sequence[Sequence[SharedPart | None]]) -> None:
        """Make this empty cache one of `length` tokens, without copying blocks.

        `shared` has for each of several adjacent token ranges what `parts` have shared of it.
        """
        for part, pieces in zip(self.parts, zip(*shared, strict=True), strict=True):
            part.adopt(length, pieces)
        self.length = length

    def restore(self, length: int, slices: Sequence[Sequence[LayerSlice | None]]) -> None:
        """Make this empty cache one of `length` tokens.

        `slices` has for each layer what was exported of adjacent token ranges.
        """
        for table in self.tables:
            table.open(length)
        for layer, pieces in zip(self.layers, slices, strict=True):
            layer.restore(length, pieces)
        self.length = length

    def whole(self, length: int) -> int:
        """The largest length up to this one after which no block is quantized and half full."""
        return min((table.whole(length) for table in self.tables), default=length)

    def can_rewind_to(self, length: int) -> bool:
        return 0 <= length <= self.length and (
            length == self.length or all(part.can_rewind_to(length) for part in self.parts)
        )

    def mark(self) -> None:
        """Let the next `rewind` come back to this length, whatever kind of cache a layer has."""
        for layer in self._unpaged:
            layer.mark()
        self._marked_length = self.length

    def rewind(self, length: int) -> None:
        """Drop all but the first `length` tokens; ValueError, and no change, if it cannot."""
        if not self.can_rewind_to(length):
            raise ValueError(f"cannot rewind {self.length} tokens to {length}")
        for part in self.parts:
            part.rewind(length)
        self.length, self._marked_length = length, None

    def rewind_near(self, length: int) -> int:
        """Rewind to this length, or to the mark if a recurrent state cannot; returns which."""
        if not self.can_rewind_to(length) and self._marked_length is not None:
            length = self._marked_length
        self.rewind(length)
        return length

    def release(self) -> None:
        """Release all blocks; the cache must not be used after that."""
        for table in self.tables:
            table.release()
