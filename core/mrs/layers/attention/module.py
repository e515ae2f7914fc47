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
from mrs.kernels.nonlinearities import activated, gated
from mrs.kernels.norms import rms_norm
from mrs.kernels.paged import PagedKV
from mrs.kernels.softmax_attention import attend_both_ways
from mrs.layers.attention.alibi import DIGIT_BITS, DIGITS, POSITION_VALUES, query_factors
from mrs.layers.attention.spec import Attention, SharedAttention
from mrs.layers.rope.module import RopeTable, scale_queries
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights


class AttentionModule:
    """Projects to queries, keys and values, attends within each sequence, projects back."""

    _backend: AttentionBackend

    def __init__(self, config: Attention, weights: ModelWeights, rope: RopeTable | None) -> None:
        self._config = config
        self._rope = rope
        self._q, self._k = weights.linear("mixer.q"), weights.linear("mixer.k")
        self._v = self._k
        if not config.values_are_keys:
            self._v = weights.linear("mixer.v")
            self._v.add_residuals()
        self._o = weights.linear("mixer.o")
        self._gate = weights.linear("mixer.gate") if config.output_gate else None
        sinks = weights.vector("mixer.sinks") if config.sinks else None
        self._options = attention_options(config, sinks)
        self._alibi = (
            AlibiModule(config, weights.matrix("mixer.q").device) if config.alibi else None
        )
        self._q_norm = self._k_norm = None
        if config.qk_norm is not None:
            whole = config.qk_norm_whole
            self._q_norm = weights.norm("mixer.q_norm", config.qk_norm, is_shared=whole)
            self._k_norm = weights.norm("mixer.k_norm", config.qk_norm, is_shared=whole)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        """x (N, hidden) to (N, hidden); writes the keys and values of the new tokens."""
        config = self._config
        q, k = self._q(x), self._k(x)
        gate = None
        if config.gated:
            q, gate = q.view(-1, config.heads, 2, config.head_dim).unbind(2)
        if config.qk_norm_whole:
            q, k = self._normed(q, k)
        q = q.reshape(-1, config.heads, config.head_dim)
        k = k.view(-1, config.kv_heads, config.head_dim)
        v = k
        if not config.values_are_keys:
            v = self._v(x).view(-1, config.kv_heads, config.value_dim)
        if config.clip is not None:
            for each in (q, k, v):
                each.clamp_(-config.clip, config.clip)
        if config.value_norm is not None:
            v = rms_norm(v, None, config.value_norm.eps)
        if not config.qk_norm_whole and not config.qk_norm_after_rope:
            q, k = self._normed(q, k)
        out = self._attend(q, k, v, batch, cache[0])
        if config.value_scale != 1.0:
            out.mul_(config.value_scale)
        if self._gate is not None:
            out = self._gated(self._gate(x), out)
        if gate is not None:
            out = gated("sigmoid", gate.flatten(1), out)
        return self._o(out)

    def _gated(self, gate: Tensor, out: Tensor) -> Tensor:
        """The output (N, H * Dv) times its gate (N, H * Dv) or (N, H)."""
        assert self._config.output_gate is not None
        if self._config.gates_heads:
            by_head = activated(self._config.output_gate, gate)[..., None]
            return out.view(*gate.shape, -1).mul_(by_head).flatten(1)
        return gated(self._config.output_gate, gate, out)

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        config = self._config
        kv = PagedKV(
            config.kv_heads,
            config.key_dim,
            config.value_dim,
            block_tokens=builder.config.size.block_tokens,
            dtype=builder.config.dtype,
            device=device,
        )
        self._backend = attention_backend(kv)
        builder.add_paged(kv, config.window or config.chunk)

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self._q_norm is None or self._k_norm is None:
            return q, k
        return self._q_norm(q), self._k_norm(k)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch, cache: PagedKVCache
    ) -> Tensor:
        """q (N, H, D), k (N, KV, D) and v (N, KV, Dv) to (N, H * Dv)."""
        config, group = self._config, batch.attention[cache.group]
        if config.always_causal:
            group = group.causal
        if self._rope is not None:
            q, k = self._rope.rotate(q, batch), self._rope.rotate(k, batch)
        if config.qk_norm_after_rope:
            q, k = self._normed(q, k)
        if self._alibi is not None:
            q, k = self._alibi(q, k, batch)
        if config.query_scale is not None:
            scale_queries(q, config.query_scale, batch)
        if config.chunk is not None:
            group = within_chunks(group, config.chunk, cache.kv.block_tokens)
        self._backend.write(cache.kv, group, k, v)
        return self._backend.attend(q, cache.kv, group, self._options)


def attention_options(config: Attention, sinks: Tensor | None = None) -> AttentionOptions:
    """What the kernels are told of a layer; `sinks` (H,) are its weights."""
    return AttentionOptions(
        scale=config.scale,
        window=config.window,
        softcap=config.softcap,
        sinks=sinks,
    )


class AlibiModule:
    """Adds them to the queries and keys of a layer."""

    def __init__(self, config: Attention, device: torch.device) -> None:
        factors = torch.tensor(query_factors(config.alibi, config.scale), device=device)
        self._factors = factors.view(config.heads, POSITION_VALUES)

    def __call__(self, q: Tensor, k: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """q (N, H, D) and k (N, KV, D) to (N, H, D + V) and (N, KV, D + V)."""
        factors = self._factors.to(q.dtype).expand(len(q), -1, -1)
        digits = position_digits(batch).to(k.device, k.dtype)
        values = digits[:, None].expand(-1, k.shape[1], -1)
        return torch.cat((q, factors), dim=-1), torch.cat((k, values), dim=-1)


def position_digits(batch: ForwardBatch) -> Tensor:
    """The position values (N, V) of the tokens' keys, in float32."""
    shifts = DIGIT_BITS * torch.arange(DIGITS, device=batch.positions.device)
    digits = (batch.positions[:, None] >> shifts) & ((1 << DIGIT_BITS) - 1)
    return torch.nn.functional.pad(digits.float(), (0, POSITION_VALUES - DIGITS))


class EncoderAttentionModule(AttentionModule):
    """The projections of a decoder's attention, without its cache.

    The tokens of a batch are whole sequences.
    """

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        builder.add(lambda: RecurrentStateCache(device=device))

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        batch: ForwardBatch,
        cache: PagedKVCache,
    ) -> Tensor:
        if self._rope is not None:
            q, k = self._rope.rotate(q, batch), self._rope.rotate(k, batch)
        outs = [
            attend_both_ways(q[rows], k[rows], v[rows], self._options) for rows, _ in batch.queries
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)


class SharedAttentionModule:
    """Projects to queries and back, and attends on the device of the keys in between."""

    _backend: AttentionBackend

    def __init__(
        self, config: SharedAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        self._layer = config.layer
        self._config = config.attention
        self._options = attention_options(config.attention)
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
        out = self._backend.attend(q, kv, group, self._options)
        return self._o(out.to(x.device, x.dtype))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        self._backend = attention_backend(builder.add_shared(self._layer))
