"""The MLP of a layer or of an expert, and names of its matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mrs.config.activations import Activation
from mrs.layers.mixer import Code, FeedForward, ShardAxis
from mrs.layers.slots import Slot


@dataclass(frozen=True)
class Mlp(FeedForward):
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) if not `gated`.

    With `bias` all matrices have one, with `down_bias` the last one alone.
    `gate_scale` multiplies gate(x), and `out_scale` the result. With `cutoff`, as much as the mean
    and `cutoff` standard deviations of a token's gate is subtracted from it, and what is negative
    then is 0. `clamped_swiglu` is a function of both gate and up, which it clamps to `clamp`.
    `xielu` has four learned numbers, in the layer's MLP only: weights, or `xielu_values` if the
    file has them in its metadata.
    """

    code = Code(operations="mrs.graph.feed_forward_operations:transform")

    intermediate: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    clamp: float = 7.0
    cutoff: float | None = None
    gate_scale: float = 1.0
    out_scale: float = 1.0
    xielu_values: tuple[float, ...] = ()
    down_bias: bool = False

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        yield from mlp_slots("ffn", self, hidden_size)
        if self.activation == "xielu" and not self.xielu_values:
            for name in ("alpha_p", "alpha_n", "beta", "eps"):
                yield Slot(f"ffn.{name}", (1,), "vector", suffix="")

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return (ShardAxis("MLP column", self.intermediate),)

    def with_shard(self, ranges: Sequence[range]) -> Mlp:
        (count,) = map(len, ranges)
        return replace(self, intermediate=count)


def mlp_slots(name: str, mlp: Mlp, hidden_size: int, experts: int = 0) -> Iterator[Slot]:
    """The weights of an MLP, or those of `experts` experts of this shape."""
    rows, bias = mlp.intermediate, mlp.bias
    for slot in ("gate", "up") if mlp.gated else ("up",):
        shape = (rows, hidden_size)
        yield Slot(f"{name}.{slot}", shape, bias=bias, experts=experts, interleave_groups=rows)
    down_bias = bias or mlp.down_bias
    yield Slot(f"{name}.down", (hidden_size, rows), bias=down_bias, experts=experts)


def mlp_names(slot: str, module: str) -> Mapping[str, str]:
    """The usual names of an MLP whose slots begin with `slot`."""
    return {f"{slot}.{part}": f"{module}.{part}_proj" for part in ("gate", "up", "down")}


def numbered_mlp_names(slot: str, module: str) -> Mapping[str, str]:
    """The names of an MLP whose matrices have numbers."""
    return {
        f"{slot}.gate": f"{module}.w1",
        f"{slot}.up": f"{module}.w3",
        f"{slot}.down": f"{module}.w2",
    }


#: Several shared experts that are one wide MLP.
SHARED_EXPERTS = mlp_names("ffn.shared", "mlp.shared_experts")

#: Files that may have all experts of a layer in two tensors.
STACKED_EXPERTS: Mapping[str, str] = {
    "ffn.experts.{expert}.gate_up.weight": "mlp.experts.gate_up_proj",
    "ffn.experts.{expert}.down.weight": "mlp.experts.down_proj",
}

#: A mixture of experts in a module of its own, with numbered matrices.
SPARSE_BLOCK: Mapping[str, str] = {
    "ffn.router": "block_sparse_moe.gate",
    **numbered_mlp_names("ffn.experts.{expert}", "block_sparse_moe.experts.{expert}"),
}
