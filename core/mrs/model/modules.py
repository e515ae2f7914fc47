"""Modules of token mixers and feed-forward blocks, of the classes that their specs name."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.layers.mixer import FeedForward, Mixer, loaded
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class TokenMixer(Protocol):
    """Combines each token with earlier tokens of its sequence."""

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden); `cache` has this layer's cache of each sequence."""

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        """Declare the cache that this layer needs for a sequence."""


class FeedForwardModule(Protocol):
    """Transforms each token independently of the others."""

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, hidden)."""


def build_mixer(config: Mixer, weights: ModelWeights, rope: RopeTable | None) -> TokenMixer:
    mixer: TokenMixer = loaded(config.own_code().module)(config, weights, rope)
    return mixer


def build_feed_forward(config: FeedForward, weights: ModelWeights) -> FeedForwardModule:
    module: FeedForwardModule = loaded(config.own_code().module)(config, weights)
    return module
