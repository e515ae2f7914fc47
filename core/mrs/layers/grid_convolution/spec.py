"""A gated convolution over the patches of an image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.layers.mixer import CacheShape, Mixer
from mrs.layers.slots import Slot


@dataclass(frozen=True)
class GridConvolution(Mixer):
    """Gated depthwise convolution over `side` x `side` patches around each one (LFM 3's tower).

    b, c, x = split(in(h)), each of `channels` values; the output is out(c * convolution(b * x)).
    `side` is odd, and there are zeros beyond the edges of an image.
    """

    channels: int
    side: int
    rope: None = None

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        yield Slot("mixer.in", (3 * self.channels, hidden_size))
        yield Slot("mixer.conv", (self.channels, self.side, self.side), "vector")
        yield Slot("mixer.out", (hidden_size, self.channels))

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape()
