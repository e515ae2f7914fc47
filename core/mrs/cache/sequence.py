"""What a whole model remembers of one sequence: one cache a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mrs.cache.layer import LayerCache, StateCache, TokenCache


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

    @property
    def reaches(self) -> frozenset[int]:
        """How far back the layers look that do not look at all tokens."""
        token_layers = (layer for layer in self.layers if isinstance(layer, TokenCache))
        return frozenset(layer.reach for layer in token_layers if layer.reach is not None)

    @property
    def has_states(self) -> bool:
        """Whether a layer remembers one state, which is lost when the next token comes."""
        return any(isinstance(layer, StateCache) for layer in self.layers)

    def can_rewind_to(self, length: int) -> bool:
        return all(layer.can_rewind_to(length) for layer in self.layers)

    def rewind(self, length: int) -> None:
        """Forget what came after the first `length` tokens; ValueError, unchanged, if lost."""
        if not self.can_rewind_to(length):
            raise ValueError(f"cannot rewind {self.length} tokens to {length}")
        for layer in self.layers:
            layer.rewind(length)
