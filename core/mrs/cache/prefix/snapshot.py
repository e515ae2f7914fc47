"""What the radix tree stores of adjacent tokens, and what a file does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from mrs.cache.block_table import SharedBlocks
from mrs.cache.layer_cache import CacheRules, LayerSlice, SharedPart
from mrs.cache.sequence_cache import SequenceCache


@dataclass(frozen=True)
class PrefixSnapshot:
    """What the parts of a cache have of the tokens `start` to `end`; None for nothing."""

    start: int
    end: int
    parts: tuple[SharedPart | None, ...] = ()

    @staticmethod
    def of(cache: SequenceCache, start: int, end: int) -> PrefixSnapshot:
        """What `cache` has of these tokens, shared and not copied."""
        return PrefixSnapshot(start, end, tuple(part.share(start, end) for part in cache.parts))

    def split(self, at: int) -> tuple[PrefixSnapshot, PrefixSnapshot]:
        halves = [(None, None) if part is None else part.split(at) for part in self.parts]
        return (
            PrefixSnapshot(self.start, at, tuple(left for left, _ in halves)),
            PrefixSnapshot(at, self.end, tuple(right for _, right in halves)),
        )

    def merge(self, other: PrefixSnapshot) -> PrefixSnapshot:
        """For each part the one that begins earlier, this one's if equal; releases the others."""
        if not self.parts:
            return other
        kept: list[SharedPart | None] = []
        for old, new in zip(self.parts, other.parts, strict=True):
            is_wider = new is not None and (old is None or new.first < old.first)
            best, rest = (new, old) if is_wider else (old, new)
            kept.append(best)
            if rest is not None:
                rest.release()
        return replace(self, parts=tuple(kept))

    def without(self, drops: Callable[[int], bool]) -> PrefixSnapshot:
        """The same without the parts whose numbers `drops` accepts, which are released."""
        kept = []
        for number, part in enumerate(self.parts):
            gone = part is not None and drops(number)
            if part is not None and gone:
                part.release()
            kept.append(None if gone else part)
        return replace(self, parts=tuple(kept))

    def release(self) -> None:
        """Release all parts."""
        self.without(lambda number: True)

    def resumable(self, length: int) -> int:
        """The largest length up to this one at which blocks have the rests of their codes."""
        blocks = (part for part in self.parts if isinstance(part, SharedBlocks))
        return min((part.resumable(length) for part in blocks), default=length)

    def serves(self, rules: Sequence[CacheRules], length: int) -> bool:
        """Whether a sequence can go on from `length` with what this has of these tokens."""
        return bool(self.parts) and all(
            part.serves(self.start, self.end, kept.first if kept else None, length)
            for part, kept in zip(rules, self.parts, strict=True)
        )


@dataclass(frozen=True)
class Exported:
    """Copies of what all layers have of the tokens `start` to `end`."""

    start: int
    end: int
    slices: tuple[LayerSlice | None, ...]

    @staticmethod
    def of(cache: SequenceCache, start: int, end: int, device: torch.device) -> Exported:
        slices = (layer.export(start, end) for layer in cache.layers)
        return Exported(start, end, tuple(piece and piece.on(device) for piece in slices))


def restore(cache: SequenceCache, exported: Sequence[Exported], length: int) -> None:
    """Make an empty cache one of `length` tokens; `exported` are adjacent, from token 0 on."""
    slices = zip(*(each.slices for each in exported), strict=True)
    cache.restore(length, list(slices))
