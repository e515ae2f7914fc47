"""A gated causal convolution over tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.mixers.mixer import CacheShape, Mixer
from mrs.architecture.slots import Slot


@dataclass(frozen=True)
class ShortConvolution(Mixer):
    """Gated depthwise causal convolution over the last `kernel_tokens` tokens (LFM 2).

    b, c, x = split(in(h)), each of `channels` values; the output is out(c * convolution(b * x)).
    """

    channels: int
    kernel_tokens: int
    bias: bool = False
    rope: None = None

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        channels, bias = self.channels, self.bias
        yield Slot("mixer.in", (3 * channels, hidden_size), bias=bias)
        yield Slot("mixer.conv", (channels, self.kernel_tokens), "vector", bias)
        yield Slot("mixer.out", (hidden_size, channels), bias=bias)

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape(state_values=self.channels * (self.kernel_tokens - 1))
