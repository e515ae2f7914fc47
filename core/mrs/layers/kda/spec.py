"""Kimi Delta Attention: linear attention with a decay of each channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class KimiDeltaAttention(Mixer):
    """Linear attention by the delta rule, with a decay of each channel (arXiv 2510.26692).

    Queries, keys and values (`heads` of `head_dim`) go through a causal convolution over the last
    `kernel_tokens` tokens. Each head has a recurrent state of shape (`head_dim`, `head_dim`).
    Decays and the gate of the output come from two linear maps each, with `head_dim` values in
    between. `norm` is applied to the output of each head, before the gate.
    """

    code = Code(operations="mrs.graph.state_operations:kimi_delta_attention")

    heads: int
    head_dim: int
    kernel_tokens: int
    norm: Norm
    rope: None = None

    @property
    def values(self) -> int:
        """Values of all heads: of queries, of keys, and of values."""
        return self.heads * self.head_dim

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        size, inner = self.values, self.head_dim
        for part in "qkv":
            yield Slot(f"mixer.{part}", (size, hidden_size))
            yield Slot(f"mixer.conv_{part}", (size, self.kernel_tokens), "vector")
        yield Slot("mixer.decay_in", (inner, hidden_size), "vector")
        yield Slot("mixer.decay_out", (size, inner), "vector")
        yield Slot("mixer.step_bias", (size,), "vector", suffix="")
        yield Slot("mixer.decay", (self.heads,), "vector", suffix="", kind="decay")
        yield Slot("mixer.beta", (self.heads, hidden_size), "vector")
        yield Slot("mixer.gate_in", (inner, hidden_size))
        yield Slot("mixer.gate_out", (size, inner))
        yield from norm_slots("mixer.head_norm", inner, self.norm)
        yield Slot("mixer.out", (hidden_size, size))

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return (ShardAxis("head", self.heads),)

    def with_shard(self, ranges: Sequence[range]) -> KimiDeltaAttention:
        (count,) = map(len, ranges)
        return replace(self, heads=count)

    @property
    def cache_shape(self) -> CacheShape:
        recent = (3 * self.values, self.kernel_tokens - 1)
        return CacheShape(states=(recent, (self.heads, self.head_dim, self.head_dim)))
