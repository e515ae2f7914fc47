"""Modules of token mixers and feed-forward blocks, of the classes that their specs name."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from mrs.cache.cache_space import CacheBuilder
from mrs.layers.mixer import FeedForward, Mixer, loaded
from mrs.layers.rope.module import RopeTable
from mrs.model.model_weights import ModelWeights


class TokenMixer(Protocol):
    """What torch has of a mixer: of most kinds the whole, of others what has to do with caches."""

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        """Declare the cache that this layer needs for a sequence."""


def build_mixer(config: Mixer, weights: ModelWeights, rope: RopeTable | None) -> Any:
    """A `TokenMixer`, with what its operations call."""
    return loaded(config.own_code().module)(config, weights, rope)


def build_feed_forward(config: FeedForward, weights: ModelWeights) -> Any:
    """The module, or what its operations call; None if they call nothing."""
    code = config.own_code()
    return loaded(code.module)(config, weights) if code.module else None
