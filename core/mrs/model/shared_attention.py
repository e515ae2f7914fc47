"""Attention of a layer to the keys and values of an earlier layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.architecture.mixers.shared_attention_spec import SharedAttention
from mrs.cache.cache_space import CacheBuilder
from mrs.cache.shared_kv import SharedKVCache
from mrs.kernels.attention_backend import AttentionBackend, attention_backend
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights
from mrs.model.rope import RopeTable


class SharedAttentionModule:
    """Projects to queries and back, and attends on the device of the keys in between."""

    _backend: AttentionBackend

    def __init__(
        self, config: SharedAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._layer = config.layer
        self._config = config.attention
        self._rope = rope
        self._q, self._o = weights.linear("mixer.q"), weights.linear("mixer.o")
        self._q_norm = None
        if config.attention.qk_norm is not None:
            self._q_norm = weights.norm("mixer.q_norm", config.attention.qk_norm)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[SharedKVCache]) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        config, kv = self._config, cache[0].kv
        q = self._q(x).view(-1, config.heads, config.head_dim)
        if self._q_norm is not None:
            q = self._q_norm(q)
        if self._rope is not None:
            q = self._rope.rotate(q, batch)
        if q.device != kv.device:
            q = q.to(kv.device, torch.float32 if kv.device.type == "cpu" else kv.keys.dtype)
        group = batch.attention[cache[0].group].on(kv.device)
        if config.always_causal:
            group = group.causal
        out = self._backend.attend(
            q, kv, group, scale=config.scale, window=config.window, softcap=config.softcap
        )
        return self._o(out.to(x.device, x.dtype))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        self._backend = attention_backend(builder.add_shared(self._layer))
