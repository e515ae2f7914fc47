"""The activation function xIELU (arXiv 2411.13010)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class XieluParameters(NamedTuple):
    """One learned or fixed number each, (1,); the first two go through softplus."""

    alpha_p: Tensor
    alpha_n: Tensor
    beta: Tensor
    eps: Tensor


def xielu(x: Tensor, parameters: XieluParameters) -> Tensor:
    """With a = softplus(alpha_p), b = beta and c = beta + softplus(alpha_n):

    a x^2 + b x where x > 0, else c (exp(min(x, eps)) - 1 - x) + b x.
    """
    positive, negative, beta, eps = (each.to(x.dtype) for each in parameters)
    positive = torch.nn.functional.softplus(positive)
    negative = torch.nn.functional.softplus(negative) + beta
    below = torch.minimum(x, eps).expm1_().sub_(x).mul_(negative)
    above = x.square().mul_(positive)
    return torch.where(x > 0, above, below).addcmul_(x, beta)
