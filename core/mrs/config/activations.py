"""Activation functions, and their names in configs."""

from __future__ import annotations

from typing import Literal

Activation = Literal[
    "silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "clamped_swiglu", "xielu"
]


#: Name in a config -> ours.
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
}
