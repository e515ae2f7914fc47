"""Softmax attention of an encoder: in both directions, without a cache."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mixer import CacheShape


@dataclass(frozen=True)
class EncoderAttention(Attention):
    """Attention of each token to all tokens of its sequence, also to later ones.

    With a `window`, a token attends to those that are less than `window` positions away. All
    tokens of a sequence are computed together, so that nothing is cached.
    """

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape()
