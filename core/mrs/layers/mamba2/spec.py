"""Mamba 2's state space, and names of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.mlp.spec import mlp_names
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot


@dataclass(frozen=True)
class Mamba2(Mixer):
    """A selective state space with one decay for each head (arXiv 2405.21060).

    The input projection gives a gate, the input of a causal convolution over the last
    `kernel_tokens` tokens, and a step for each head, between `least_step` and `most_step`. What is
    convolved are `heads` of `head_dim` values, and `state_dim` input and output weights for each of
    `groups` of heads. Each head has a recurrent state of shape (`head_dim`, `state_dim`). `norm` is
    applied to each group of the output, after it is gated or, with `norm_before_gate`, before.
    `multipliers` are factors of five parts of the projection: gates, values, input weights, output
    weights and steps. `bias` is that of the input projection. If it `shares_group`, other processes
    have further heads of its only group.
    """

    code = Code(operations="mrs.graph.state_operations:mamba2")

    heads: int
    head_dim: int
    state_dim: int
    groups: int
    kernel_tokens: int
    norm: Norm | None
    least_step: float = 0.0
    most_step: float = float("inf")
    bias: bool = False
    out_bias: bool = False
    convolution_bias: bool = True
    norm_before_gate: bool = False
    multipliers: tuple[float, ...] = ()
    shares_group: bool = False
    rope: None = None

    @property
    def values(self) -> int:
        """Values of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: values, input weights and output weights."""
        return self.values + 2 * self.groups * self.state_dim

    @property
    def projected(self) -> int:
        """Rows of the input projection: gate, channels and steps."""
        return sum(self.parts)

    @property
    def parts(self) -> tuple[int, ...]:
        """Rows of the input projection for gates, values, both kinds of weights, and steps."""
        weights = self.groups * self.state_dim
        return self.values, self.values, weights, weights, self.heads

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        parts = self.parts
        yield Slot("mixer.in", (self.projected, hidden_size), bias=self.bias, row_sections=parts)
        yield Slot(
            "mixer.conv",
            (self.channels, self.kernel_tokens),
            "vector",
            self.convolution_bias,
            row_sections=parts[1:4],
        )
        yield Slot("mixer.step_bias", (self.heads,), "vector", suffix="")
        yield Slot("mixer.decay", (self.heads,), "vector", suffix="", kind="decay")
        yield Slot("mixer.skip", (self.heads,), "vector", suffix="")
        if self.norm is not None:
            yield Slot("mixer.head_norm", (self.values,), "vector")
        yield Slot("mixer.out", (hidden_size, self.values), bias=self.out_bias)

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        """Groups of heads, or heads if there is one group, whose weights are in each process."""
        if self.groups > 1:
            return (ShardAxis("head group", self.groups),)
        return (ShardAxis("head", self.heads),)

    def with_shard(self, ranges: Sequence[range]) -> Mamba2:
        (count,) = map(len, ranges)
        if self.groups > 1:
            return replace(self, heads=self.heads // self.groups * count, groups=count)
        return replace(self, heads=count, shares_group=True)

    @property
    def cache_shape(self) -> CacheShape:
        recent = (self.channels, self.kernel_tokens - 1)
        return CacheShape(states=(recent, (self.heads, self.head_dim, self.state_dim)))


def mamba2_names(module: str) -> Mapping[str, str]:
    """The names of a mixer in this module of a layer."""
    return {
        "mixer.in": f"{module}.in_proj",
        "mixer.conv": f"{module}.conv1d",
        "mixer.step_bias": f"{module}.dt_bias",
        "mixer.decay": f"{module}.A_log",
        "mixer.skip": f"{module}.D",
        "mixer.head_norm": f"{module}.norm",
        "mixer.out": f"{module}.out_proj",
    }


#: Layers with a mixer in one of two modules, and an MLP.
HYBRID_LAYERS: Mapping[str, str] = {
    "norm": "model.final_layernorm",
    **mamba2_names("mamba"),
    **mlp_names("ffn", "feed_forward"),
    "ffn.norm": "pre_ff_layernorm",
}

#: Layers of a single mixer each.
BACKBONE: Mapping[str, str] = {
    "embedding": "backbone.embeddings",
    "norm": "backbone.norm_f",
    "layer": "backbone.layers.{layer}.",
    **mamba2_names("mixer"),
    "mixer.norm": "norm",
}

GGUF_MAMBA2: Mapping[str, str] = {
    "mixer.in": "ssm_in",
    "mixer.conv": "ssm_conv1d",
    "mixer.skip": "ssm_d",
    "mixer.out": "ssm_out",
}
