"""From a part's description to the part that runs: one entry a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.architecture.layers import (
    Attention,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    Mixer,
    Mlp,
    Moe,
    ShortConvolution,
)
from mrs.cache.cache_space import CacheBuilder
from mrs.model.attention import AttentionModule
from mrs.model.batch import ForwardBatch
from mrs.model.delta_net import DeltaNetPart
from mrs.model.latent_attention import LatentAttentionModule
from mrs.model.mlp import MlpModule
from mrs.model.moe import MoeModule
from mrs.model.rope import RopeTable
from mrs.model.short_convolution import ConvolutionPart
from mrs.model.weights import ModelWeights


class TokenMixer(Protocol):
    """Lets the tokens of each sequence look at each other."""

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden); `cache` has this layer's cache of each sequence."""

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        """Say what this layer keeps of a sequence."""


class FeedForwardPart(Protocol):
    """Transforms each token on its own."""

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, hidden)."""


_MIXERS: dict[type, Callable[[Any, ModelWeights, RopeTable | None], TokenMixer]] = {
    Attention: AttentionModule,
    LatentAttention: LatentAttentionModule,
    GatedDeltaNet: DeltaNetPart,
    ShortConvolution: ConvolutionPart,
}
_FEED_FORWARDS: dict[type, Callable[[Any, ModelWeights], FeedForwardPart]] = {
    Mlp: MlpModule,
    Moe: MoeModule,
}


def build_mixer(part: Mixer, weights: ModelWeights, rope: RopeTable | None) -> TokenMixer:
    return _MIXERS[type(part)](part, weights, rope)


def build_feed_forward(part: FeedForward, weights: ModelWeights) -> FeedForwardPart:
    return _FEED_FORWARDS[type(part)](part, weights)
