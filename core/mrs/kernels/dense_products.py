"""Products with the small matrices that are never quantized.

On a CPU with the native library, a row of a result has the same bits whatever other rows are
computed with it: torch's products do not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.kernels.cpu import dense, elementwise


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (N, C) times the transposed weight (R, C), plus the bias (R,): (N, R), in float32."""
    x = x.float()
    library = elementwise.library_for(x)
    if library is None or not dense.can_multiply(x, weight[None]):
        return F.linear(x, weight, bias)
    product = dense.multiply(library, x[:, None], weight[None])[:, 0]
    return product if bias is None else product.add_(bias)


def multiply_heads(x: Tensor, weights: Tensor) -> Tensor:
    """Each head's x (N, H, C) times its transposed weights (H, R, C): (N, H, R), in x's dtype."""
    library = elementwise.library_for(x)
    if library is not None and dense.can_multiply(x, weights):
        return dense.multiply(library, x, weights)
    product = torch.bmm(x.transpose(0, 1).to(weights.dtype), weights.transpose(1, 2))
    return product.transpose(0, 1).to(x.dtype)
