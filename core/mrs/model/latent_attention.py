"""Multi-head latent attention (MLA) of a decoder layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.cache.cache_space import CacheBuilder
from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.attention_backend import AttentionBackend, attention_backend
from mrs.kernels.dense_products import multiply_heads
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights
from mrs.model.query_scale import scale_queries
from mrs.model.rope import RopeTable


class LatentAttentionModule:
    """MLA with the key and value projections absorbed into queries and outputs.

    The cache has one latent vector and one rotated key for each token, shared by all heads. The
    latent vectors are never expanded to keys and values: queries are multiplied by `k_b` instead,
    and the attention output by `v_b`. So all heads attend to one key head.
    """

    _backend: AttentionBackend

    def __init__(self, mla: LatentAttention, weights: ModelWeights, rope: RopeTable | None) -> None:
        assert rope is not None
        self._mla = mla
        self._rope = rope
        if mla.q_lora_rank is None:
            self._q = weights.linear("mixer.q")
        else:
            self._q_a, self._q = weights.linear("mixer.q_a"), weights.linear("mixer.q_b")
            self._q_norm = weights.norm("mixer.q_a_norm", mla.norm)
        self._kv_a = weights.linear("mixer.kv_a")
        self._kv_norm = weights.norm("mixer.kv_a_norm", mla.norm)
        self._k_b = weights.vector("mixer.k_b.weight")
        self._v_b = weights.vector("mixer.v_b.weight")
        self._o = weights.linear("mixer.o")

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        """x (N, hidden) to (N, hidden); writes the latent vectors of the new tokens."""
        kv, group = cache[0].kv, batch.attention[cache[0].group]
        queries = self._absorbed(self._queries(x), batch)
        self._write(x, batch, kv, group)
        return self._project(self._backend.attend(queries, kv, group, scale=self._mla.scale))

    def _absorbed(self, q: Tensor, batch: ForwardBatch) -> Tensor:
        """Queries of the cached vectors: (N, heads * (nope + rope.dim)) to (N, heads, key dim)."""
        mla = self._mla
        q = q.view(-1, mla.heads, mla.qk_nope_head_dim + mla.rope.dim)
        q_nope, q_rope = q[..., : mla.qk_nope_head_dim], q[..., mla.qk_nope_head_dim :]
        k_b = self._k_b.transpose(1, 2)
        queries = self._with_rope(multiply_heads(q_nope, k_b), q_rope, batch)
        if mla.query_scale is not None:
            scale_queries(queries, mla.query_scale, batch)
        return queries

    def _write(self, x: Tensor, batch: ForwardBatch, kv: PagedKV, group: AttentionBatch) -> None:
        mla = self._mla
        compressed = self._kv_a(x)
        latent = self._kv_norm(compressed[:, : mla.kv_lora_rank])
        k_rope = compressed[:, mla.kv_lora_rank :]
        keys = self._with_rope(latent[:, None], k_rope[:, None], batch)
        self._backend.write(kv, group, keys, None)

    def _project(self, out: Tensor) -> Tensor:
        """The latent results of all heads (N, heads * kv_lora_rank) to (N, hidden)."""
        out = out.view(-1, self._mla.heads, self._mla.kv_lora_rank)
        return self._o(multiply_heads(out, self._v_b).flatten(1))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        mla = self._mla
        kv = PagedKV(
            1,
            mla.kv_lora_rank + mla.rope.dim,
            mla.kv_lora_rank,
            block_tokens=builder.config.size.block_tokens,
            dtype=builder.config.dtype,
            device=device,
            values_in_keys=True,
        )
        self._backend = attention_backend(kv)
        builder.add_paged(kv)

    def _queries(self, x: Tensor) -> Tensor:
        """(N, heads * (qk_nope_head_dim + rope.dim)), not rotated yet."""
        if self._mla.q_lora_rank is not None:
            x = self._q_norm(self._q_a(x))
        return self._q(x)

    def _with_rope(self, nope: Tensor, rope: Tensor, batch: ForwardBatch) -> Tensor:
        """cat(nope, rotate(rope)): (N, H, latent) and (N, H, rope.dim)."""
        return torch.cat((nope, self._rope.rotate(rope, batch)), dim=-1)
