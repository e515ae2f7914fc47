"""A gated causal convolution over tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.slots import Slot


@dataclass(frozen=True)
class ShortConvolution(Mixer):
    """Gated depthwise causal convolution over the last `kernel_tokens` tokens (LFM 2).

    b, c, x = split(in(h)), each of `channels` values; the output is out(c * convolution(b * x)).
    """

    code = Code(operations="mrs.graph.state_operations:short_convolution")

    channels: int
    kernel_tokens: int
    bias: bool = False
    rope: None = None

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        channels, bias = self.channels, self.bias
        parts = (channels,) * 3
        yield Slot("mixer.in", (3 * channels, hidden_size), bias=bias, row_sections=parts)
        yield Slot("mixer.conv", (channels, self.kernel_tokens), "vector", bias)
        yield Slot("mixer.out", (hidden_size, channels), bias=bias)

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return (ShardAxis("channel", self.channels),)

    def with_shard(self, ranges: Sequence[range]) -> ShortConvolution:
        (count,) = map(len, ranges)
        return replace(self, channels=count)

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape(states=((self.channels, self.kernel_tokens - 1),))
