"""Linear attention with the gated delta rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.architecture.mixers.mixer import CacheShape, Mixer
from mrs.architecture.norm_rope import Norm
from mrs.architecture.slots import Slot


@dataclass(frozen=True)
class GatedDeltaNet(Mixer):
    """Linear attention with the gated delta rule (arXiv 2412.06464).

    Queries and keys (`key_heads` of `key_dim`) and values (`value_heads` of `value_dim`) go through
    a causal convolution over the last `kernel_tokens` tokens. Each value head has a recurrent state
    of shape (`key_dim`, `value_dim`). `norm` is applied to the output of each head, which is then
    gated. Value head v reads key head v // (value_heads / key_heads), or v % key_heads if the heads
    are `tiled`.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel_tokens: int
    norm: Norm
    tiled: bool = False
    rope: None = None

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        groups, heads = self.key_heads, self.value_heads
        key_size, value_size = groups * self.key_dim, heads * self.value_dim
        for slot, size in (("q", key_size), ("k", key_size), ("v", value_size), ("z", value_size)):
            yield Slot(f"mixer.{slot}", (size, hidden_size), interleave_groups=groups)
        yield Slot("mixer.beta", (heads, hidden_size), "vector", interleave_groups=groups)
        yield Slot("mixer.step", (heads, hidden_size), "vector", interleave_groups=groups)
        yield Slot("mixer.step_bias", (heads,), "vector", suffix="")
        yield Slot("mixer.decay", (heads,), "vector", suffix="", kind="decay")
        yield Slot("mixer.conv", (self.channels, self.kernel_tokens), "vector")
        yield Slot("mixer.head_norm", (self.value_dim,), "vector")
        yield Slot("mixer.out", (hidden_size, value_size))

    @property
    def cache_shape(self) -> CacheShape:
        recent = self.channels * (self.kernel_tokens - 1)
        return CacheShape(state_values=recent + self.value_heads * self.key_dim * self.value_dim)
