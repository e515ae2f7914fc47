"""What stands in a layer that only mixes tokens, or only transforms them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.layers.mixer import CacheShape, Code, FeedForward, Mixer
from mrs.layers.slots import Slot


@dataclass(frozen=True)
class NoMixer(Mixer):
    """Nothing: the layer only transforms each token."""

    code = Code()

    rope: None = None

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        return iter(())

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape()


@dataclass(frozen=True)
class NoFeedForward(FeedForward):
    """Nothing: the layer only mixes tokens."""

    code = Code()

    has_own_norm = True

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        return iter(())
