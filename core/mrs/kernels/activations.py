"""The nonlinear functions of feed-forward parts, by their names."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from mrs.kernels import steps

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def gated(activation: str, gate: Tensor, up: Tensor) -> Tensor:
    """activation(gate) * up, of one shape; `gate` may be written over."""
    library = steps.library_for(gate) if activation in steps.ACTIVATION_NUMBERS else None
    if library and gate.is_contiguous() and up.is_contiguous():
        return steps.gate(library, activation, gate, up)
    return ACTIVATIONS[activation](gate).mul_(up)
