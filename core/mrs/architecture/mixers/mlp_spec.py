"""The MLP of a layer or of an expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mrs.architecture.mixers.mixer import FeedForward
from mrs.architecture.slots import Slot

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu2", "clamped_swiglu"]


@dataclass(frozen=True)
class Mlp(FeedForward):
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) if not `gated`.

    With `cutoff`, as much as the mean and `cutoff` standard deviations of a token's gate is
    subtracted from it, and what is negative then is 0. `clamped_swiglu` is a function of both gate
    and up, which it clamps to `clamp`.
    """

    intermediate: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    clamp: float = 7.0
    cutoff: float | None = None

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        return mlp_slots("ffn", self, hidden_size)


def mlp_slots(name: str, mlp: Mlp, hidden_size: int, experts: int = 0) -> Iterator[Slot]:
    """The weights of an MLP, or those of `experts` experts of this shape."""
    rows, bias = mlp.intermediate, mlp.bias
    for slot in ("gate", "up") if mlp.gated else ("up",):
        shape = (rows, hidden_size)
        yield Slot(f"{name}.{slot}", shape, bias=bias, experts=experts, interleave_groups=rows)
    yield Slot(f"{name}.down", (hidden_size, rows), bias=bias, experts=experts)
