"""What every token mixer and every feed-forward module declares of itself.

The planner, the loader and the cache read only this, so that none of them has a list of kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mrs.layers.rope.spec import Rope
from mrs.layers.slots import Slot


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


class Units(NamedTuple):
    """What processes share out of a module: `total` equal units, of which each gets some.

    The weight `summed` reads `columns` values of each unit, and its output is a part of a sum. So
    do the weights `also`.
    """

    what: str
    total: int
    summed: str
    columns: int = 1
    also: tuple[str, ...] = ()


class Module(ABC):
    """A part of a layer with weights, which several processes may share."""

    @abstractmethod
    def slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in a model of `hidden_size`."""

    @property
    def units(self) -> tuple[Units, ...]:
        """What processes share out; nothing if each computes the whole module."""
        return ()


class FeedForward(Module):
    """A module that transforms each token by itself.

    If it `has_own_norm`, it reads x itself instead of the layer's norm of x. If it `adds_up`, it
    adds up the parts of all processes itself.
    """

    has_own_norm = False
    adds_up = False

    @property
    def routing(self) -> Routing | None:
        """How many experts it has and uses, if it has any."""
        return None

    def with_units(self, parts: Sequence[range]) -> FeedForward:
        """The module of a process that has this part of each of the `units`."""
        return self


class Mixer(Module):
    """A module through which tokens of one sequence influence each other.

    Files may have weights for the `unused_slots` of a layer, which are not read. A sequence has
    `cache_count` caches for it.
    """

    rope: Rope | None
    unused_slots: tuple[str, ...] = ()
    cache_count = 1

    @property
    @abstractmethod
    def cache_shape(self) -> CacheShape:
        """What is cached of a sequence."""

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        """Cached values that one token is multiplied with after `context_tokens` tokens.

        0 for a state, which is small compared with the weights.
        """
        return 0

    def with_units(self, parts: Sequence[range]) -> Mixer:
        """The mixer of a process that has this part of each of the `units`."""
        return self
