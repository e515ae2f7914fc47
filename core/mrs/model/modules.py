"""Modules of token mixers and feed-forward blocks, of the classes that their specs name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.layers.mixer import FeedForward, Mixer, loaded
from mrs.layers.rope.module import RopeTable
from mrs.model.model_weights import ModelWeights


class TokenMixer(Protocol):
    """What torch has of a mixer: of some kinds the whole, of most what has to do with caches."""

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        """Declare the cache that this layer needs for a sequence."""


class StateCaches:
    """What torch has of a mixer that is operations alone: its states, if it has any."""

    def __init__(self, config: Mixer) -> None:
        """Raises TypeError for a mixer that caches more than states."""
        shape = config.cache_shape
        if shape.token_rows or shape.image_rows:
            raise TypeError(f"{type(config).__name__} names no `module` that has its cache")
        self._shapes = shape.states

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        builder.add(lambda: RecurrentStateCache(*self._shapes, device=device))

    def states(self, cache: Sequence[RecurrentStateCache]) -> Sequence[RecurrentStateCache]:
        """Those of each sequence, of all that is cached of the layer."""
        return cache


def build_mixer(config: Mixer, weights: ModelWeights, rope: RopeTable | None) -> Any:
    """A `TokenMixer`, with what its operations call."""
    code = config.own_code()
    return loaded(code.module)(config, weights, rope) if code.module else StateCaches(config)


def build_feed_forward(config: FeedForward, weights: ModelWeights) -> Any:
    """The module, or what its operations call; None if they call nothing."""
    code = config.own_code()
    return loaded(code.module)(config, weights) if code.module else None
