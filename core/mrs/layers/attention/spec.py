"""Softmax attention: of a decoder, of an encoder, and to another layer's keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mrs.layers.attention.alibi import POSITION_VALUES
from mrs.layers.known_fields import Known, require_only
from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.spec import QueryScale, Rope
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class Attention(Mixer):
    """Grouped-query softmax attention.

    `window` is the sliding window: a query attends to itself and the `window - 1` tokens before it.
    If tokens of an image attend to its later tokens, too, those in layers with `always_causal` do
    not. With a `chunk` it attends to those from the last multiple of `chunk` on up to itself.
    `softcap` caps scores: softcap * tanh(score / softcap). `sinks` adds one learned score per head
    to the denominator of the softmax. `qk_norm` is applied before rope to each head, whose weights
    are its own with `qk_norm_by_head`, or with `qk_norm_whole` to the concatenation of all heads;
    with `qk_norm_after_rope` after rope. Before rope, `clip` bounds the magnitude of all queries,
    keys and values. Heads of values have `value_head_dim` values if it is set, and `value_scale`
    multiplies them.
    `value_norm` is an RMS norm of each head of the values, without weights. If `values_are_keys`,
    values are the projected keys, before their norm and rope.
    `query_scale` multiplies queries by a factor that depends on their position. `gated`: q_proj
    also yields a gate of the same size, and the output is multiplied by sigmoid(gate);
    `output_gate` is the same with a linear map of its own, and its activation instead of sigmoid;
    it has one value for each head if it `gates_heads`. With `alibi`, the slopes of all heads, the
    position of a key times the slope is added to a score (see `mrs.layers.attention.alibi`).
    Of the biases of q, k and v, that of the keys is absent without `key_bias`.
    """

    code = Code(
        "mrs.layers.attention.module:AttentionModule",
        operations="mrs.graph.attention_operations:attend",
    )

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    qk_norm: Norm | None = None
    qk_norm_whole: bool = False
    qk_norm_by_head: bool = False
    qk_norm_after_rope: bool = False
    clip: float | None = None
    value_norm: Norm | None = None
    values_are_keys: bool = False
    query_scale: QueryScale | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    sinks: bool = False
    always_causal: bool = False
    gated: bool = False
    output_gate: Literal["sigmoid", "softplus"] | None = None
    gates_heads: bool = False
    value_head_dim: int | None = None
    value_scale: float = 1.0
    alibi: tuple[float, ...] = ()
    key_bias: bool = True

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        query_size = self.heads * self.head_dim
        query_rows = 2 * query_size if self.gated else query_size
        rows = {"mixer.q": query_rows, "mixer.k": self.key_size}
        if not self.values_are_keys:
            rows["mixer.v"] = self.value_size
        for name, count in rows.items():
            groups = self.kv_heads
            bias = self.has_bias(name)
            yield Slot(name, (count, hidden_size), bias=bias, interleave_groups=groups)
        yield Slot("mixer.o", (hidden_size, self.output_size), bias=self.out_bias)
        if self.output_gate:
            yield Slot("mixer.gate", (self.gate_size, hidden_size))
        if self.qk_norm is not None:
            yield from norm_slots("mixer.q_norm", self._norm_shape(self.heads), self.qk_norm)
            yield from norm_slots("mixer.k_norm", self._norm_shape(self.kv_heads), self.qk_norm)
        if self.sinks:
            yield Slot("mixer.sinks", (self.heads,), "vector", suffix="")

    def has_bias(self, slot: str) -> bool:
        """Whether the projection to queries, keys or values has a bias."""
        return self.qkv_bias and (self.key_bias or slot != "mixer.k")

    def _norm_shape(self, heads: int) -> int | tuple[int, int]:
        """The shape of the weights of `qk_norm`, over queries or keys of `heads` heads."""
        if self.qk_norm_whole:
            return heads * self.head_dim
        return (heads, self.head_dim) if self.qk_norm_by_head else self.head_dim

    @property
    def key_dim(self) -> int:
        """Values of a cached key: those of its head, and of its position if scores depend on it."""
        return self.head_dim + (POSITION_VALUES if self.alibi else 0)

    @property
    def value_dim(self) -> int:
        """The size of a head of values."""
        return self.value_head_dim or self.head_dim

    @property
    def key_size(self) -> int:
        """The values of all keys of a token, as they are projected."""
        return self.kv_heads * self.head_dim

    @property
    def value_size(self) -> int:
        """The values of all value heads of a token."""
        return self.kv_heads * self.value_dim

    @property
    def output_size(self) -> int:
        """The values of all heads of a token."""
        return self.heads * self.value_dim

    @property
    def gate_size(self) -> int:
        """The values of a token's `output_gate`."""
        return self.heads if self.gates_heads else self.output_size

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        """Heads of keys with their queries; a single one is in each process."""
        if self.kv_heads == 1:
            return (ShardAxis("head", self.heads),)
        return (ShardAxis("KV head", self.kv_heads),)

    def with_shard(self, ranges: Sequence[range]) -> Attention:
        (part,) = ranges
        group = 1 if self.kv_heads == 1 else self.heads // self.kv_heads
        slopes = self.alibi[part.start * group : part.stop * group]
        kv_heads = 1 if self.kv_heads == 1 else len(part)
        return replace(self, heads=len(part) * group, kv_heads=kv_heads, alibi=slopes)

    @property
    def cache_shape(self) -> CacheShape:
        rows = self.kv_heads * self.key_dim, self.value_size
        head_dims = () if self.alibi else (self.key_dim, self.value_dim)
        return CacheShape(rows, self.window or self.chunk, head_dims=head_dims)

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        visible = min(context_tokens, self.window or self.chunk or context_tokens)
        return self.heads * (self.key_dim + self.value_dim) * visible


#: Scores depend on nothing but queries and keys.
_ENCODER: Known = {
    "EncoderAttention": "heads kv_heads head_dim scale rope window qk_norm qk_norm_whole "
    "qk_norm_by_head clip value_norm values_are_keys qkv_bias out_bias gated output_gate "
    "gates_heads value_scale"
}


@dataclass(frozen=True)
class EncoderAttention(Attention):
    """Attention of each token to all tokens of its sequence, also to later ones.

    With a `window`, a token attends to those that are less than `window` positions away. All
    tokens of a sequence are computed together, so that nothing is cached.
    """

    code = Code(
        "mrs.layers.attention.module:EncoderAttentionModule",
        operations="mrs.graph.attention_operations:attend",
    )

    def __post_init__(self) -> None:
        require_only(
            self, _ENCODER, "attention of an encoder", apart=("rope", "qk_norm", "value_norm")
        )

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape()


#: What concerns queries, scores and the output, and keys and values as the other layer has them.
_SHARED: Known = {
    "Attention": "heads kv_heads head_dim scale rope window softcap qk_norm value_norm "
    "values_are_keys qkv_bias out_bias always_causal"
}


@dataclass(frozen=True)
class SharedAttention(Mixer):
    """Attention like `attention`, whose keys and values are those that layer `layer` has cached.

    It has the weights of queries and output only, although files may have the others too.
    """

    code = Code(
        "mrs.layers.attention.module:SharedAttentionModule",
        operations="mrs.graph.attention_operations:attend_shared",
    )

    attention: Attention
    layer: int
    unused_slots = ("mixer.k", "mixer.v", "mixer.k_norm")

    def __post_init__(self) -> None:
        apart = ("rope", "qk_norm", "value_norm")
        require_only(self.attention, _SHARED, "attention to another layer's keys", apart=apart)

    @property
    def rope(self) -> Rope | None:  # type: ignore[override]
        return self.attention.rope

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        slots = self.attention.slots(hidden_size)
        return (slot for slot in slots if slot.name not in self.unused_slots)

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return self.attention.shard_axes

    def with_shard(self, ranges: Sequence[range]) -> SharedAttention:
        return replace(self, attention=self.attention.with_shard(ranges))

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape()

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        return self.attention.cached_multiplications(context_tokens, image_keys)
