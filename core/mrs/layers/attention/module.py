"""Softmax attention: of a decoder, of an encoder, and to another layer's keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder
from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.cache.shared_kv import SharedKVCache
from mrs.kernels.attention_backend import AttentionBackend, attention_backend
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.chunked_attention import within_chunks
from mrs.kernels.paged import PagedKV
from mrs.kernels.softmax_attention import attend_both_ways
from mrs.layers.attention.spec import Attention, EncoderAttention, SharedAttention
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class AttentionModule:
    """The keys and values that a layer caches, and attention to them."""

    _backend: AttentionBackend

    def __init__(self, config: Attention, weights: ModelWeights, rope: RopeTable | None) -> None:
        self._config = config
        sinks = weights.vector("mixer.sinks") if config.sinks else None
        self._options = attention_options(config, sinks)

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        config = self._config
        kv = PagedKV(
            config.kv_heads,
            config.key_dim,
            config.value_dim,
            block_tokens=builder.config.size.block_tokens,
            dtype=builder.config.dtype,
            device=device,
            first_is_whole=config.chunk is None,
        )
        self._backend = attention_backend(kv)
        builder.add_paged(kv, config.window or config.chunk)

    def write(
        self, k: Tensor, v: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]
    ) -> None:
        """Write k (N, KV, D) and v (N, KV, Dv) of the new tokens."""
        self._backend.write(cache[0].kv, batch.attention[cache[0].group], k, v)

    def attend(self, q: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        """q (N, H, D) to (N, H * Dv)."""
        config, group = self._config, batch.attention[cache[0].group]
        if config.always_causal:
            group = group.causal
        if config.chunk is not None:
            group = within_chunks(group, config.chunk, cache[0].kv.block_tokens)
        return self._backend.attend(q, cache[0].kv, group, self._options)


def attention_options(config: Attention, sinks: Tensor | None = None) -> AttentionOptions:
    """What the kernels are told of a layer; `sinks` (H,) are its weights."""
    return AttentionOptions(
        scale=config.scale,
        window=config.window,
        softcap=config.softcap,
        sinks=sinks,
    )


class EncoderAttentionModule:
    """Attention of the tokens of a batch, whose sequences are whole: nothing is cached."""

    def __init__(
        self, config: EncoderAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._options = attention_options(config)

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        builder.add(lambda: RecurrentStateCache(device=device))

    def attend_both_ways(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """q (N, H, D), k (N, KV, D) and v (N, KV, Dv) to (N, H * Dv)."""
        outs = [
            attend_both_ways(q[rows], k[rows], v[rows], self._options) for rows, _ in batch.queries
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)


class SharedAttentionModule:
    """Attention to the keys and values of another layer, on their device."""

    _backend: AttentionBackend

    def __init__(
        self, config: SharedAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._layer, self._config = config.layer, config.attention
        self._options = attention_options(config.attention)

    def attend(self, q: Tensor, batch: ForwardBatch, cache: Sequence[SharedKVCache]) -> Tensor:
        """q (N, H, D) to (N, H * Dv)."""
        kv, there = cache[0].kv, q
        if q.device != kv.device:
            dtype = torch.float32 if kv.device.type == "cpu" else kv.keys.dtype
            there = q.to(kv.device, dtype)
        group = batch.attention[cache[0].group].on(kv.device)
        if self._config.always_causal:
            group = group.causal
        return self._backend.attend(there, kv, group, self._options).to(q.device, q.dtype)

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        self._backend = attention_backend(builder.add_shared(self._layer))
