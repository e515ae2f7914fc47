"""What every token mixer and every feed-forward module declares of itself.

The planner, the loader and the cache read only this, so that none of them has a list of kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mrs.architecture.norm_rope import Rope
from mrs.architecture.slots import Slot


class CacheShape(NamedTuple):
    """The values that a mixer caches of one sequence.

    token_rows      widths of the rows of each token: keys and values, or one latent vector
    window          the sliding window; None if all tokens stay in the cache
    image_rows      widths of the rows of each image key
    state_values    values of states in float32, whatever the length
    """

    token_rows: tuple[int, ...] = ()
    window: int | None = None
    image_rows: tuple[int, ...] = ()
    state_values: int = 0


class Routing(NamedTuple):
    """A token uses `top_k` of `experts`."""

    top_k: int
    experts: int


class FeedForward(ABC):
    """A module that transforms each token by itself.

    If it `has_own_norm`, it reads x itself instead of the layer's norm of x.
    """

    has_own_norm = False

    @property
    def routing(self) -> Routing | None:
        """How many experts it has and uses, if it has any."""
        return None

    @abstractmethod
    def slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in a model of `hidden_size`."""


class Mixer(ABC):
    """A module through which tokens of one sequence influence each other.

    Files may have weights for the `unused_slots` of a layer, which are not read. A sequence has
    `cache_count` caches for it.
    """

    rope: Rope | None
    unused_slots: tuple[str, ...] = ()
    cache_count = 1

    @abstractmethod
    def slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in a model of `hidden_size`."""

    @property
    @abstractmethod
    def cache_shape(self) -> CacheShape:
        """What is cached of a sequence."""

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        """Cached values that one token is multiplied with after `context_tokens` tokens.

        0 for a state, which is small compared with the weights.
        """
        return 0


@dataclass(frozen=True)
class NoMixer(Mixer):
    """Nothing: the layer only transforms each token."""

    rope: None = None

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        return iter(())

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape()


@dataclass(frozen=True)
class NoFeedForward(FeedForward):
    """Nothing: the layer only mixes tokens."""

    has_own_norm = True

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        return iter(())
