"""The module class of each kind of token mixer and feed-forward block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.layers.attention.module import (
    AttentionModule,
    EncoderAttentionModule,
    SharedAttentionModule,
)
from mrs.layers.attention.spec import Attention, EncoderAttention, SharedAttention
from mrs.layers.empty.module import NoFeedForwardModule, NoMixerModule
from mrs.layers.empty.spec import NoFeedForward, NoMixer
from mrs.layers.gated_delta_net.module import DeltaNetModule
from mrs.layers.gated_delta_net.spec import GatedDeltaNet
from mrs.layers.kda.module import KimiDeltaAttentionModule
from mrs.layers.kda.spec import KimiDeltaAttention
from mrs.layers.latent_attention.module import (
    BorrowedChoiceAttentionModule,
    IndexedAttentionModule,
    LatentAttentionModule,
)
from mrs.layers.latent_attention.spec import (
    BorrowedChoiceAttention,
    IndexedAttention,
    LatentAttention,
)
from mrs.layers.mamba.module import MambaModule
from mrs.layers.mamba.spec import Mamba
from mrs.layers.mamba2.module import Mamba2Module
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.mixer import FeedForward, Mixer
from mrs.layers.mlp.module import MlpModule
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.module import MlpAndMoeModule, MoeModule
from mrs.layers.moe.spec import MlpAndMoe, Moe
from mrs.layers.parallel_mixers.module import ParallelMixersModule
from mrs.layers.parallel_mixers.spec import ParallelMixers
from mrs.layers.rope.module import RopeTable
from mrs.layers.short_convolution.module import ShortConvolutionModule
from mrs.layers.short_convolution.spec import ShortConvolution
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


_MIXERS: dict[type, Callable[[Any, ModelWeights, RopeTable | None], TokenMixer]] = {
    Attention: AttentionModule,
    EncoderAttention: EncoderAttentionModule,
    SharedAttention: SharedAttentionModule,
    LatentAttention: LatentAttentionModule,
    IndexedAttention: IndexedAttentionModule,
    BorrowedChoiceAttention: BorrowedChoiceAttentionModule,
    GatedDeltaNet: DeltaNetModule,
    KimiDeltaAttention: KimiDeltaAttentionModule,
    ShortConvolution: ShortConvolutionModule,
    Mamba: MambaModule,
    Mamba2: Mamba2Module,
    ParallelMixers: ParallelMixersModule,
    NoMixer: NoMixerModule,
}
_FEED_FORWARDS: dict[type, Callable[[Any, ModelWeights], FeedForwardModule]] = {
    Mlp: MlpModule,
    Moe: MoeModule,
    MlpAndMoe: MlpAndMoeModule,
    NoFeedForward: NoFeedForwardModule,
}


def build_mixer(config: Mixer, weights: ModelWeights, rope: RopeTable | None) -> TokenMixer:
    return _MIXERS[type(config)](config, weights, rope)


def build_feed_forward(config: FeedForward, weights: ModelWeights) -> FeedForwardModule:
    return _FEED_FORWARDS[type(config)](config, weights)
