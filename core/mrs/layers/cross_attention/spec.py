"""Attention of text tokens to images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class CrossAttention(Mixer):
    """Softmax attention of text tokens to image features, from which keys and values are computed.

    A token attends to the last image at or before its position, and to the images directly before
    that one (with no other token in between). The layer leaves tokens before the first image
    unchanged. `norm` is applied to every head of queries and keys. `input_norm` is a norm of the
    tokens alone, for a mixer whose layer has none. With `bias` all projections but that of the keys
    have one. Sound that is heard by cross-attention is such an image.
    """

    code = Code(
        "mrs.layers.cross_attention.module:CrossAttentionModule",
        operations="mrs.graph.attention_operations:attend_to_images",
    )

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    norm: Norm | None
    rope: None = None
    input_norm: Norm | None = None
    bias: bool = False

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        query_size = self.heads * self.head_dim
        key_size = self.kv_heads * self.head_dim
        yield Slot("cross.q", (query_size, hidden_size), bias=self.bias)
        yield Slot("cross.k", (key_size, hidden_size))
        yield Slot("cross.v", (key_size, hidden_size), bias=self.bias)
        yield Slot("cross.o", (hidden_size, query_size), bias=self.bias)
        if self.norm is not None:
            yield from norm_slots("cross.q_norm", self.head_dim, self.norm)
            yield from norm_slots("cross.k_norm", self.head_dim, self.norm)
        if self.input_norm is not None:
            yield from norm_slots("cross.input_norm", hidden_size, self.input_norm)

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return (ShardAxis("KV head", self.kv_heads),)

    def with_shard(self, ranges: Sequence[range]) -> CrossAttention:
        (count,) = map(len, ranges)
        return replace(self, heads=self.heads // self.kv_heads * count, kv_heads=count)

    @property
    def cache_shape(self) -> CacheShape:
        row = self.kv_heads * self.head_dim
        return CacheShape(image_rows=(row, row))

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        return 2 * self.heads * self.head_dim * image_keys
