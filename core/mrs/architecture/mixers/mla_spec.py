"""Multi-head latent attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mixer import CacheShape, Code, Mixer, Units
from mrs.architecture.norm_rope import Norm, QueryScale, Rope
from mrs.architecture.slots import Slot, norm_slots


@dataclass(frozen=True)
class LatentAttention(Mixer):
    """Multi-head latent attention, MLA (arXiv 2405.04434).

    The KV cache stores `kv_lora_rank + rope.dim` values per token: the latent vector, from which
    linear maps give the keys and values of all heads, and the rotated key that all heads share.
    A head's query and key have `qk_nope_head_dim` further values without rope, its value has
    `v_head_dim`. Queries come from a latent vector of `q_lora_rank` values, or directly from the
    hidden state if that is None. `norm` normalizes both latent vectors; `bias` is that of the maps
    to them and of the output projection. `query_scale` is as in `Attention`.
    """

    code = Code(
        "mrs.model.latent_attention:LatentAttentionModule",
        "mrs.plan.memory.activations.latent_attention_activations:latent_attention_bytes",
        "mrs.graph.attention_operations:attend_latent",
    )

    heads: int
    qk_nope_head_dim: int
    v_head_dim: int
    kv_lora_rank: int
    q_lora_rank: int | None
    scale: float
    rope: Rope
    norm: Norm
    bias: bool = False
    query_scale: QueryScale | None = None

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        heads, latent = self.heads, self.kv_lora_rank
        query_rows = heads * (self.qk_nope_head_dim + self.rope.dim)
        if self.q_lora_rank is None:
            yield Slot("mixer.q", (query_rows, hidden_size))
        else:
            yield Slot("mixer.q_a", (self.q_lora_rank, hidden_size), bias=self.bias)
            yield from norm_slots("mixer.q_a_norm", self.q_lora_rank, self.norm)
            yield Slot("mixer.q_b", (query_rows, self.q_lora_rank))
        yield Slot("mixer.kv_a", (latent + self.rope.dim, hidden_size), bias=self.bias)
        yield from norm_slots("mixer.kv_a_norm", latent, self.norm)
        yield Slot(
            "mixer.k_b", (heads, self.qk_nope_head_dim, latent), "dense", interleave_groups=heads
        )
        yield Slot("mixer.v_b", (heads, self.v_head_dim, latent), "dense", interleave_groups=heads)
        yield Slot("mixer.o", (hidden_size, heads * self.v_head_dim), bias=self.bias)

    @property
    def absorbed(self) -> Attention:
        """Attention of all heads to one head of keys, the latent vectors with the rotated keys."""
        key_dim, value_dim = self.kv_lora_rank + self.rope.dim, self.kv_lora_rank
        return Attention(
            *(self.heads, 1, key_dim, self.scale, self.rope),
            value_head_dim=value_dim,
            query_scale=self.query_scale,
        )

    @property
    def units(self) -> tuple[Units, ...]:
        """Heads; the latent vectors are computed in each process."""
        return (Units("head", self.heads, "mixer.o", self.v_head_dim),)

    def with_units(self, parts: Sequence[range]) -> LatentAttention:
        (count,) = map(len, parts)
        return replace(self, heads=count)

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape((self.kv_lora_rank + self.rope.dim,))

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        return self.heads * (2 * self.kv_lora_rank + self.rope.dim) * context_tokens
