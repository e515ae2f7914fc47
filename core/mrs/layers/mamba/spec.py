"""The first Mamba's selective state space, and names of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mrs.layers.mamba2.spec import GGUF_MAMBA2, mamba2_names
from mrs.layers.mixer import CacheShape, Code, Mixer, ShardAxis
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class Mamba(Mixer):
    """A selective state space with decays of each channel and value (arXiv 2312.00752).

    The input projection gives `channels` values, which go through a causal convolution over the
    last `kernel_tokens` tokens, and as many gates. From what is convolved follow, by one linear
    map, `step_rank` values from which another makes the step of each channel, and `state_dim` input
    and output weights. Each channel has a recurrent state of `state_dim` values. A `norm` is
    applied to the values for the steps and to both kinds of weights.
    """

    code = Code(operations="mrs.graph.state_operations:mamba")

    channels: int
    state_dim: int
    step_rank: int
    kernel_tokens: int
    norm: Norm | None = None
    bias: bool = False
    convolution_bias: bool = True
    rope: None = None

    @property
    def selected(self) -> tuple[int, int, int]:
        """Values that follow from what is convolved: for steps, and both kinds of weights."""
        return self.step_rank, self.state_dim, self.state_dim

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        channels = self.channels
        parts = (channels, channels)
        yield Slot("mixer.in", (2 * channels, hidden_size), bias=self.bias, row_sections=parts)
        kernel = (channels, self.kernel_tokens)
        yield Slot("mixer.conv", kernel, "vector", self.convolution_bias)
        yield Slot("mixer.x", (sum(self.selected), channels))
        if self.norm is not None:
            for part, size in zip(("step", "b", "c"), self.selected, strict=True):
                yield from norm_slots(f"mixer.{part}_norm", size, self.norm)
        yield Slot("mixer.step", (channels, self.step_rank))
        yield Slot("mixer.step_bias", (channels,), "vector", suffix="")
        yield Slot("mixer.decay", (channels, self.state_dim), "vector", suffix="", kind="decay")
        yield Slot("mixer.skip", (channels,), "vector", suffix="")
        yield Slot("mixer.out", (hidden_size, channels), bias=self.bias)

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return (ShardAxis("channel", self.channels),)

    def with_shard(self, ranges: Sequence[range]) -> Mamba:
        (part,) = ranges
        return replace(self, channels=len(part))

    @property
    def cache_shape(self) -> CacheShape:
        recent = (self.channels, self.kernel_tokens - 1)
        return CacheShape(states=(recent, (self.channels, self.state_dim)))


def mamba_names(module: str) -> Mapping[str, str]:
    """The names of a mixer in this module of a layer."""
    return {
        **mamba2_names(module),
        "mixer.x": f"{module}.x_proj",
        "mixer.step": f"{module}.dt_proj",
        "mixer.step_bias": f"{module}.dt_proj.bias",
        "mixer.step_norm": f"{module}.dt_layernorm",
        "mixer.b_norm": f"{module}.b_layernorm",
        "mixer.c_norm": f"{module}.c_layernorm",
    }


GGUF_MAMBA: Mapping[str, str] = {
    **GGUF_MAMBA2,
    "mixer.x": "ssm_x",
    "mixer.step": "ssm_dt",
    "mixer.step_norm": "ssm_dt_norm",
    "mixer.b_norm": "ssm_b_norm",
    "mixer.c_norm": "ssm_c_norm",
}
