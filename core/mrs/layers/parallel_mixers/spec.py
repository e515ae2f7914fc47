"""Attention and a state space in parallel, in one layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mrs.layers.attention.spec import Attention
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.rope.spec import Rope
from mrs.layers.slots import Slot


@dataclass(frozen=True)
class ParallelMixers(Mixer):
    """attention_out * attention(attention_in * x) + state_out * state(state_in * x)."""

    code = Code(
        "mrs.layers.parallel_mixers.module:ParallelMixersModule",
        operations="mrs.graph.layer_graph:mix_in_parallel",
    )

    attention: Attention
    state: Mamba2
    attention_in: float = 1.0
    attention_out: float = 1.0
    state_in: float = 1.0
    state_out: float = 1.0
    cache_count = 2

    @property
    def rope(self) -> Rope | None:  # type: ignore[override]
        return self.attention.rope

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        yield from self.attention.slots(hidden_size)
        yield from self.state.slots(hidden_size)

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return (*self.attention.shard_axes, *self.state.shard_axes)

    def with_shard(self, ranges: Sequence[range]) -> ParallelMixers:
        attention_axes = len(self.attention.shard_axes)
        return replace(
            self,
            attention=self.attention.with_shard(ranges[:attention_axes]),
            state=self.state.with_shard(ranges[attention_axes:]),
        )

    @property
    def cache_shape(self) -> CacheShape:
        return self.attention.cache_shape._replace(states=self.state.cache_shape.states)

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        return self.attention.cached_multiplications(context_tokens, image_keys)
