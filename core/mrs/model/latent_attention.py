"""Multi-head latent attention as a part of a layer."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from mrs.cache.growing import GrowingCache
from mrs.cache.layer import KeyValueCache
from mrs.cache.sequence import CacheRoom
from mrs.families.spec import LatentAttention
from mrs.kernels.attention import attend
from mrs.model.rope import RopeTable
from mrs.model.segments import Segment
from mrs.model.weights import ModelWeights

#: All heads look at the same keys, so only a step through them bounds the scores in memory.
SCORES_AT_ONCE = 1 << 24


class LatentAttentionPart:
    """Remembers one latent vector and one rotated key a token, shared by all heads.

    Keys and values are never made of the latent vectors: queries go through the keys' map instead,
    and what attention mixes goes through the values' map, so all heads attend to one key head.
    """

    def __init__(
        self, part: LatentAttention, weights: ModelWeights, rope: RopeTable | None
    ) -> None:
        assert rope is not None
        self._part = part
        self._rope = rope
        if part.query_latent_dim is None:
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

    def __call__(self, x: Tensor, segments: list[Segment], layer: int) -> Tensor:
        part = self._part
        q = self._queries(x).view(-1, part.heads, part.key_dim + part.rope.dim)
        own, turned = q[..., : part.key_dim], q[..., part.key_dim :]
        absorbed = _by_head(own, self._k_b)  # (N, H, latent)
        compressed = self._kv_a(x)
        latent, key = (
            self._kv_norm(compressed[:, : part.latent_dim]),
            compressed[:, part.latent_dim :],
        )
        mixed = x.new_empty(x.shape[0], part.heads, part.latent_dim)
        for segment in segments:
            rows = segment.rows
            cache = cast(KeyValueCache, segment.memory.layers[layer])
            total = max(segment.total_tokens, cache.length + rows.stop - rows.start)
            queries = self._rotated(absorbed[rows], turned[rows], cache.length, total)
            keys = self._rotated(latent[rows, None], key[rows, None], cache.length, total)
            mixed[rows] = self._attend(queries, keys, cache)
        return self._o(_by_head(mixed, self._v_b.transpose(1, 2)).flatten(1))

    def new_cache(self, room: CacheRoom, device: torch.device) -> KeyValueCache:
        key_dim = self._part.latent_dim + self._part.rope.dim
        # Values are the first numbers of the keys and take no room of their own.
        return GrowingCache(
            1, key_dim, 0, capacity=room.capacity_tokens, dtype=room.dtype, device=device
        )

    def _queries(self, x: Tensor) -> Tensor:
        if self._part.query_latent_dim is not None:
            x = self._q_norm(self._q_a(x))
        return self._q(x)

    def _rotated(self, plain: Tensor, turned: Tensor, start: int, total_tokens: int) -> Tensor:
        """(T, H, latent) and (T, H, rope) to the former and the rotated latter, side by side."""
        return torch.cat((plain, self._rope.rotate(turned, start, total_tokens)), dim=-1)

    def _attend(self, queries: Tensor, new_keys: Tensor, cache: KeyValueCache) -> Tensor:
        part = self._part
        new_keys = new_keys.transpose(0, 1)
        keys, _ = cache.append(new_keys, new_keys[..., :0])
        values = keys[..., : part.latent_dim]
        heads = max(SCORES_AT_ONCE // (queries.shape[0] * keys.shape[1]), 1)
        outs = [
            attend(some, keys, values, scale=part.scale).view(some.shape[0], -1, part.latent_dim)
            for some in torch.split(queries, heads, dim=1)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """Each head's x times its matrix: (N, H, A) and (H, A, B) to (N, H, B), in x's dtype."""
    product = torch.bmm(x.transpose(0, 1).to(weight.dtype), weight)
    return product.transpose(0, 1).to(x.dtype)
