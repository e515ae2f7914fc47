"""What a whole model remembers of one sequence: one cache a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mrs.cache.layer import LayerCache


@dataclass(frozen=True)
class CacheRoom:
    """How large new caches are: tokens allocated ahead, tokens of one prefill chunk, and type."""

    capacity_tokens: int
    chunk_tokens: int
    dtype: torch.dtype


class SequenceCache:
    """The layers' caches of one sequence; all layers have seen the same tokens."""

    def __init__(self, layers: Sequence[LayerCache]) -> None:
        self.layers = layers

    @property
    def length(self) -> int:
        return self.layers[0].length

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def can_rewind_to(self, length: int) -> bool:
        return all(layer.can_rewind_to(length) for layer in self.layers)

    def rewind(self, length: int) -> None:
        """Forget what came after the first `length` tokens; ValueError, unchanged, if lost."""
        if not self.can_rewind_to(length):
            raise ValueError(f"cannot rewind {self.length} tokens to {length}")
        for layer in self.layers:
            layer.rewind(length)
