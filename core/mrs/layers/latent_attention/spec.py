"""Multi-head latent attention, to all tokens or to chosen ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mrs.layers.attention.spec import Attention
from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.spec import QueryScale, Rope
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class LatentAttention(Mixer):
    """Multi-head latent attention, MLA (arXiv 2405.04434).

    The KV cache stores `kv_lora_rank + rope.dim` values per token: the latent vector, from which
    linear maps give the keys and values of all heads, and the rotated key that all heads share.
    A head's query and key have `qk_nope_head_dim` more values without rope, its value has
    `v_head_dim`. Queries come from a latent vector of `q_lora_rank` values, or directly from the
    hidden state if that is None. `norm` normalizes both latent vectors; `bias` is that of the maps
    to them and of the output projection. `query_scale` is as in `Attention`.
    """

    code = Code(
        "mrs.layers.latent_attention.module:LatentAttentionModule",
        operations="mrs.graph.attention_operations:attend_latent",
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
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        """Heads; the latent vectors are computed in each process."""
        return (ShardAxis("head", self.heads),)

    def with_shard(self, ranges: Sequence[range]) -> LatentAttention:
        (count,) = map(len, ranges)
        return replace(self, heads=count)

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape((self.kv_lora_rank + self.rope.dim,))

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        return self.heads * (2 * self.kv_lora_rank + self.rope.dim) * context_tokens


@dataclass(frozen=True)
class Indexer:
    """Chooses the `top_k` tokens that a token attends to (DeepSeek Sparse Attention).

    The score of an earlier token is sum_h(weight_h * relu(q_h * k)) over `heads` with queries and
    one common key of `head_dim` values; the weights come from a linear map. The rope of the
    attention rotates the first values of each, in pairs that are adjacent if `interleaved`. `norm`
    is applied to keys.
    """

    heads: int
    head_dim: int
    top_k: int
    interleaved: bool
    norm: Norm


@dataclass(frozen=True)
class IndexedAttention(LatentAttention):
    """MLA to the tokens that an indexer chooses, whose keys are cached, too.

    The indexer's queries come from the latent vector of queries. If it `lends_choice`, the layers
    after it attend to the same tokens, up to the next layer with an indexer.
    """

    code = Code(
        "mrs.layers.latent_attention.module:LatentAttentionModule",
        operations="mrs.graph.attention_operations:attend_latent",
    )

    indexer: Indexer = field(kw_only=True)
    lends_choice: bool = field(default=False, kw_only=True)
    cache_count = 2

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        indexer = self.indexer
        yield from super().slots(hidden_size)
        rows = indexer.heads * indexer.head_dim
        yield Slot("mixer.index_q", (rows, self.q_lora_rank or hidden_size))
        yield Slot("mixer.index_k", (indexer.head_dim, hidden_size))
        yield from norm_slots("mixer.index_norm", indexer.head_dim, indexer.norm)
        yield Slot("mixer.index_weights", (indexer.heads, hidden_size), "vector")

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape((*super().cache_shape.token_rows, self.indexer.head_dim))

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        indexer = self.indexer
        scores = indexer.heads * indexer.head_dim * context_tokens
        chosen = min(context_tokens, indexer.top_k)
        return scores + super().cached_multiplications(chosen, image_keys)


@dataclass(frozen=True)
class BorrowedChoiceAttention(LatentAttention):
    """MLA to the `top_k` tokens that the last layer with an indexer has chosen.

    Files may have an indexer for it all the same.
    """

    code = Code(
        "mrs.layers.latent_attention.module:LatentAttentionModule",
        operations="mrs.graph.attention_operations:attend_latent",
    )

    top_k: int = field(kw_only=True)
    unused_slots = ("mixer.index_q", "mixer.index_k", "mixer.index_norm", "mixer.index_weights")

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        return super().cached_multiplications(min(context_tokens, self.top_k), image_keys)
