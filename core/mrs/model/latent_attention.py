"""Multi-head latent attention as a part of a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.architecture.layers import LatentAttention
from mrs.cache.cache_space import CacheBuilder
from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.attention_backend import AttentionBackend, attention_backend
from mrs.kernels.paged import PagedKV
from mrs.model.batch import ForwardBatch
from mrs.model.rope import RopeTable
from mrs.model.weights import ModelWeights


class LatentAttentionModule:
    """Remembers one latent vector and one rotated key a token, shared by all heads.

    Keys and values are never made of the latent vectors: queries go through the keys' map instead,
    and what attention mixes goes through the values' map, so all heads attend to one key head.
    """

    _backend: AttentionBackend

    def __init__(
        self, part: LatentAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        assert rope is not None
        self._part = part
        self._rope = rope
        if part.q_lora_rank is None:
            self._q = weights.linear("mixer.q")
        else:
            self._q_a, self._q = weights.linear("mixer.q_a"), weights.linear("mixer.q_b")
            self._q_norm = weights.norm("mixer.q_a_norm", part.norm)
        self._kv_a = weights.linear("mixer.kv_a")
        self._kv_norm = weights.norm("mixer.kv_a_norm", part.norm)
        self._k_b, self._v_b = (
            weights.vector("mixer.k_b.weight"),
            weights.vector("mixer.v_b.weight"),
        )
        self._o = weights.linear("mixer.o")

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Sequence[PagedKVCache]) -> Tensor:
        part, kv = self._part, cache[0].kv
        group = batch.attention[cache[0].group]
        q = self._queries(x).view(-1, part.heads, part.qk_nope_head_dim + part.rope.dim)
        own, turned = q[..., : part.qk_nope_head_dim], q[..., part.qk_nope_head_dim :]
        queries = self._rotated(_by_head(own, self._k_b), turned, batch)  # (N, H, latent + rope)
        compressed = self._kv_a(x)
        latent = self._kv_norm(compressed[:, : part.kv_lora_rank])
        key = compressed[:, part.kv_lora_rank :]
        keys = self._rotated(latent[:, None], key[:, None], batch)
        self._backend.write(kv, group, keys, None)
        mixed = self._backend.attend(queries, kv, group, scale=part.scale)
        mixed = mixed.view(x.shape[0], part.heads, part.kv_lora_rank)
        return self._o(_by_head(mixed, self._v_b.transpose(1, 2)).flatten(1))

    def add_cache(self, builder: CacheBuilder, device: torch.device) -> None:
        part, config = self._part, builder.config
        kv = PagedKV(
            1,
            part.kv_lora_rank + part.rope.dim,
            part.kv_lora_rank,
            block_tokens=config.size.block_tokens,
            dtype=config.dtype,
            device=device,
            values_in_keys=True,
        )
        self._backend = attention_backend(kv)
        builder.add_paged(kv)

    def _queries(self, x: Tensor) -> Tensor:
        if self._part.q_lora_rank is not None:
            x = self._q_norm(self._q_a(x))
        return self._q(x)

    def _rotated(self, plain: Tensor, turned: Tensor, batch: ForwardBatch) -> Tensor:
        """(N, H, latent) and (N, H, rope) to the former and the rotated latter, side by side."""
        return torch.cat((plain, self._rope.rotate(turned, batch)), dim=-1)


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """Each head's x times its matrix: (N, H, A) and (H, A, B) to (N, H, B), in x's dtype."""
    product = torch.bmm(x.transpose(0, 1).to(weight.dtype), weight)
    return product.transpose(0, 1).to(x.dtype)
