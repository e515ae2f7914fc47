"""The module class of each kind of token mixer and feed-forward block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.delta_net_spec import GatedDeltaNet
from mrs.architecture.mixers.encoder_attention_spec import EncoderAttention
from mrs.architecture.mixers.indexed_attention_spec import (
    BorrowedChoiceAttention,
    IndexedAttention,
)
from mrs.architecture.mixers.kda_spec import KimiDeltaAttention
from mrs.architecture.mixers.mamba2_spec import Mamba2
from mrs.architecture.mixers.mamba_spec import Mamba
from mrs.architecture.mixers.mixer import FeedForward, Mixer, NoFeedForward, NoMixer
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.mixers.mlp_and_moe_spec import MlpAndMoe
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.mixers.parallel_mixers_spec import ParallelMixers
from mrs.architecture.mixers.shared_attention_spec import SharedAttention
from mrs.architecture.mixers.short_convolution_spec import ShortConvolution
from mrs.cache.cache_space import CacheBuilder
from mrs.model.attention import AttentionModule
from mrs.model.batch import ForwardBatch
from mrs.model.delta_net import DeltaNetModule
from mrs.model.encoder_attention import EncoderAttentionModule
from mrs.model.indexed_attention import BorrowedChoiceAttentionModule, IndexedAttentionModule
from mrs.model.kda import KimiDeltaAttentionModule
from mrs.model.latent_attention import LatentAttentionModule
from mrs.model.mamba import MambaModule
from mrs.model.mamba2 import Mamba2Module
from mrs.model.mlp import MlpModule
from mrs.model.mlp_and_moe import MlpAndMoeModule
from mrs.model.model_weights import ModelWeights
from mrs.model.moe import MoeModule
from mrs.model.no_module import NoFeedForwardModule, NoMixerModule
from mrs.model.parallel_mixers import ParallelMixersModule
from mrs.model.rope import RopeTable
from mrs.model.shared_attention import SharedAttentionModule
from mrs.model.short_convolution import ShortConvolutionModule


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
