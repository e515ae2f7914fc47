"""The activation function xIELU (arXiv 2411.13010)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise


class XieluParameters(NamedTuple):
    """Learned or fixed numbers, (1,) each; the first two go through softplus."""

    alpha_p: Tensor
    alpha_n: Tensor
    beta: Tensor
    eps: Tensor


def xielu_numbers(parameters: XieluParameters) -> Tensor:
    """What the native library takes: a and c of `xielu`, beta and eps, (4) in float32."""
    positive, negative, beta, eps = (each.float() for each in parameters)
    softplus = torch.nn.functional.softplus
    numbers = (softplus(positive), softplus(negative) + beta, beta, eps)
    return torch.stack([each.reshape(()) for each in numbers])


def xielu(x: Tensor, parameters: XieluParameters) -> Tensor:
    """May overwrite x. With a = softplus(alpha_p), b = beta and c = beta + softplus(alpha_n):

    a x^2 + b x where x > 0, else c (exp(min(x, eps)) - 1 - x) + b x.
    """
    library = elementwise.library_for(x)
    if library is not None and x.is_contiguous():
        return elementwise.xielu(library, x, xielu_numbers(parameters))
    positive, negative, beta, eps = (each.to(x.dtype) for each in parameters)
    positive = torch.nn.functional.softplus(positive)
    negative = torch.nn.functional.softplus(negative) + beta
    below = torch.minimum(x, eps).expm1_().sub_(x).mul_(negative)
    above = x.square().mul_(positive)
    return torch.where(x > 0, above, below).addcmul_(x, beta)
