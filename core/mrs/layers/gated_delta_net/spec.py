"""Linear attention with the gated delta rule, and names of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot


@dataclass(frozen=True)
class GatedDeltaNet(Mixer):
    """Linear attention with the gated delta rule (arXiv 2412.06464).

    Queries and keys (`key_heads` of `key_dim`) and values (`value_heads` of `value_dim`) go through
    a causal convolution over the last `kernel_tokens` tokens. Each value head has a recurrent state
    of shape (`key_dim`, `value_dim`). `norm` is applied to the output of each head, which is then
    gated. `beta_scale` multiplies the strengths of updates: with 2, a state may change its sign.
    Value head v reads key head v // (value_heads / key_heads), or v % key_heads if the heads are
    `tiled`.
    """

    code = Code(operations="mrs.graph.state_operations:delta_net")

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel_tokens: int
    norm: Norm
    tiled: bool = False
    beta_scale: float = 1.0
    rope: None = None

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        groups, heads = self.key_heads, self.value_heads
        keys, values = (groups * self.key_dim,), self._sections(self.value_dim)
        by_head = self._sections(1)
        parts: tuple[int, ...]
        for name, parts in (("q", keys), ("k", keys), ("v", values), ("z", values)):
            shape = (sum(parts), hidden_size)
            yield Slot(f"mixer.{name}", shape, interleave_groups=groups, row_sections=parts)
        for name in ("beta", "step"):
            yield Slot(
                f"mixer.{name}",
                (heads, hidden_size),
                "vector",
                interleave_groups=groups,
                row_sections=by_head,
            )
        yield Slot("mixer.step_bias", (heads,), "vector", suffix="", row_sections=by_head)
        yield Slot("mixer.decay", (heads,), "vector", suffix="", kind="decay", row_sections=by_head)
        channels, parts = (self.channels, self.kernel_tokens), (*keys, *keys, *values)
        yield Slot("mixer.conv", channels, "vector", row_sections=parts)
        yield Slot("mixer.head_norm", (self.value_dim,), "vector")
        yield Slot("mixer.out", (hidden_size, sum(values)), column_sections=values)

    def _sections(self, dim: int) -> tuple[int, ...]:
        """Sizes of what belongs to all key heads in turn, of `dim` values for each value head."""
        repeats = self.value_heads // self.key_heads if self.tiled else 1
        return (self.value_heads // repeats * dim,) * repeats

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        """Key heads with their value heads."""
        return (ShardAxis("key head", self.key_heads),)

    def with_shard(self, ranges: Sequence[range]) -> GatedDeltaNet:
        (count,) = map(len, ranges)
        return replace(
            self, key_heads=count, value_heads=self.value_heads // self.key_heads * count
        )

    @property
    def cache_shape(self) -> CacheShape:
        recent = (self.channels, self.kernel_tokens - 1)
        return CacheShape(states=(recent, (self.value_heads, self.key_dim, self.value_dim)))


DELTA_NET: Mapping[str, str] = {
    "mixer.conv": "linear_attn.conv1d",
    "mixer.out": "linear_attn.out_proj",
}
SEPARATE_DELTA_NET: Mapping[str, str] = {
    **DELTA_NET,
    "mixer.qkv": "linear_attn.in_proj_qkv",
    "mixer.z": "linear_attn.in_proj_z",
    "mixer.beta": "linear_attn.in_proj_b",
    "mixer.step": "linear_attn.in_proj_a",
}
GGUF_DELTA_NET: Mapping[str, str] = {
    "mixer.conv": "ssm_conv1d",
    "mixer.out": "ssm_out",
    "ffn.norm": "post_attention_norm",
}
GGUF_SEPARATE_DELTA_NET: Mapping[str, str] = {
    **GGUF_DELTA_NET,
    "mixer.beta": "ssm_beta",
    "mixer.step": "ssm_alpha",
}
