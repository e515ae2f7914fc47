"""What a whole model keeps of one sequence: one cache a layer, and the blocks that they share."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.cache.block_table import BlockTable
from mrs.cache.layer_cache import CachePart, LayerCache, LayerSlice, SharedPart
from mrs.interrupts import interrupts_held


class SequenceCache:
    """The layers' caches of one sequence; all layers have taken up its first `length` tokens.

    `reserve` makes room for new tokens; when all layers have written them, `advance` counts them.
    Blocks are given back by `release` only.
    """

    def __init__(
        self,
        tables: Sequence[BlockTable],
        layers: Sequence[LayerCache],
        own: Sequence[CachePart],
    ) -> None:
        """`own` are those of the layers that do not keep their tokens in blocks of `tables`."""
        self.length = 0
        self.tables = tables
        self.layers = layers
        #: What a prefix tree shares: blocks, and what single layers keep.
        self.parts: tuple[CachePart, ...] = (*tables, *own)

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps one state, which is lost when the next token comes."""
        return any(layer.is_state for layer in self.layers)

    def reserve(self, tokens: int) -> None:
        """Have room for `tokens` new tokens in all blocks."""
        for table in self.tables:
            table.reserve(self.length, tokens)

    def advance(self, tokens: int) -> None:
        """Count new tokens, which all layers have taken up."""
        with interrupts_held():
            for layer in self.layers:
                layer.advance(tokens)
            self.length += tokens

    def adopt(self, length: int, shared: Sequence[Sequence[SharedPart | None]]) -> None:
        """Make this empty cache one of `length` tokens: `shared` are adjacent stretches, each
        with what `parts` have shared of it.
        """
        for part, pieces in zip(self.parts, zip(*shared, strict=True), strict=True):
            part.adopt(length, pieces)
        self.length = length

    def restore(self, length: int, slices: Sequence[Sequence[LayerSlice | None]]) -> None:
        """Make this empty cache one of `length` tokens: `slices` has for each layer what was
        exported of adjacent stretches of tokens.
        """
        for table in self.tables:
            table.open(length)
        for layer, pieces in zip(self.layers, slices, strict=True):
            layer.restore(length, pieces)
        self.length = length

    def can_rewind_to(self, length: int) -> bool:
        return 0 <= length <= self.length and (
            length == self.length or all(part.can_rewind_to(length) for part in self.parts)
        )

    def rewind(self, length: int) -> None:
        """Forget what came after the first `length` tokens; ValueError, unchanged, if lost."""
        if not self.can_rewind_to(length):
            raise ValueError(f"cannot rewind {self.length} tokens to {length}")
        with interrupts_held():
            for part in self.parts:
                part.rewind(length)
            self.length = length

    def release(self) -> None:
        """Give the blocks back; this cache cannot be used any more."""
        for table in self.tables:
            table.release()
