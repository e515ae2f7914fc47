"""Activation functions, by name.

On a CPU a value's result does not depend on the others of its tensor. That of most functions of
torch does: they compute the last values of a tensor, which do not fill a vector, otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.kernels.cpu import elementwise


def _gelu(x: Tensor) -> Tensor:
    return (x * sqrt(0.5)).erf_().add_(1).mul_(x).mul_(0.5) if x.is_cpu else F.gelu(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), or x where that is the same in float32; may overwrite x."""
    library = elementwise.library_for(x)
    if library and x.is_contiguous():
        return elementwise.gate(library, "softplus", x, None)
    return torch.where(x > 20, x, x.exp().log1p_())


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": _gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * F.sigmoid(1.702 * x),
    "sigmoid": F.sigmoid,
    "softplus": softplus,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square_(),
    "tanh": Tensor.tanh_,
}


def activated(activation: str, x: Tensor) -> Tensor:
    """activation(x); may overwrite x."""
    library = elementwise.library_for(x) if activation in elementwise.ACTIVATION_CODES else None
    if library and x.is_contiguous():
        return elementwise.gate(library, activation, x, None)
    return _ACTIVATIONS[activation](x)


def gated(activation: str, gate: Tensor, up: Tensor, clamp: float = 7.0) -> Tensor:
    """activation(gate) * up, both of the same shape; may overwrite `gate`.

    `clamped_swiglu` is gate * sigmoid(1.702 * gate) * (up + 1), with gate <= clamp and
    -clamp <= up <= clamp; only it uses `clamp`.
    """
    if activation == "clamped_swiglu":
        up = up.clamp(-clamp, clamp).add_(1)
        return gated("quick_gelu", gate.clamp(max=clamp), up)
    library = elementwise.library_for(gate) if activation in elementwise.ACTIVATION_CODES else None
    if library and gate.is_contiguous() and up.is_contiguous():
        return elementwise.gate(library, activation, gate, up)
    return _ACTIVATIONS[activation](gate).mul_(up)


def cut_off(x: Tensor, deviations: float) -> Tensor:
    """relu(x - cutoff), where the cutoff is `deviations` standard deviations above a row's mean.

    x (N, D) is overwritten.
    """
    library = elementwise.library_for(x)
    if library and x.is_contiguous():
        return elementwise.cut_off(library, x, deviations)
    deviation, mean = torch.std_mean(x, -1, correction=0, keepdim=True)
    return x.sub_(mean + deviation * deviations).relu_()


def cut_off_parts(x: Tensor, deviations: float, sum_parts: Callable[[Tensor], Tensor]) -> Tensor:
    """The same if x (N, D) is a shard of the rows; `sum_parts` adds up the sums of all shards."""
    sums = x.sum(-1, keepdim=True)
    total = sum_parts(torch.cat((sums, torch.full_like(sums, x.shape[-1])), dim=-1))
    count = total[:, 1:]
    mean = total[:, :1] / count
    variance = sum_parts((x - mean).square_().sum(-1, keepdim=True)) / count
    return x.sub_(mean + variance.sqrt_() * deviations).relu_()
