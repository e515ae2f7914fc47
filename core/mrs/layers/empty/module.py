"""What stands in a layer that only mixes tokens, or only transforms them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.layers.empty.spec import NoFeedForward, NoMixer
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class NoMixerModule:
    """The layer has it for its cache only, which is empty."""

    def __init__(self, config: NoMixer, weights: ModelWeights, rope: RopeTable | None) -> None:
        pass

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        return x

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        builder.add(lambda: RecurrentStateCache(device=device))


class NoFeedForwardModule:
    """The layer does not call it."""

    def __init__(self, config: NoFeedForward, weights: ModelWeights) -> None:
        pass

    def __call__(self, x: Tensor) -> Tensor:
        return x
