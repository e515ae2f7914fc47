"""Activation functions of MLPs, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from mrs.kernels.cpu import elementwise

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * F.sigmoid(1.702 * x),
    "relu2": lambda x: F.relu(x).square_(),
}


def clamped_swiglu(gate: Tensor, up: Tensor, clamp: float) -> Tensor:
    """gate * sigmoid(1.702 * gate) * (up + 1), with gate <= clamp and -clamp <= up <= clamp."""
    gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
    return gate * F.sigmoid(1.702 * gate) * (up + 1)


def gated(activation: str, gate: Tensor, up: Tensor, clamp: float = 7.0) -> Tensor:
    """activation(gate) * up, both of the same shape; may overwrite `gate`.

    Only `clamped_swiglu` uses `clamp`.
    """
    if activation == "clamped_swiglu":
        return clamped_swiglu(gate, up, clamp)
    library = elementwise.library_for(gate) if activation in elementwise.ACTIVATION_CODES else None
    if library and gate.is_contiguous() and up.is_contiguous():
        return elementwise.gate(library, activation, gate, up)
    return ACTIVATIONS[activation](gate).mul_(up)
