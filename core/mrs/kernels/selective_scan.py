"""The recurrence of the first Mamba (arXiv 2312.00752)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise, recurrent


class SelectedInput(NamedTuple):
    """T tokens of one sequence, in float32: x and step (T, C), b and c (T, N)."""

    x: Tensor
    step: Tensor
    b: Tensor
    c: Tensor


def selective_scan(inputs: SelectedInput, decay: Tensor, skip: Tensor, state: Tensor) -> Tensor:
    """Update the state S (C, N) with each token in order, and read it: (T, C).

    `decay` (C, N) is negative. For each token:

        S = exp(step^T decay) * S + (step * x)^T b
        out = S c + skip * x

    One token after another, whose result then does not depend on how many tokens come at once.
    """
    library = elementwise.library_for(inputs.x)
    if library is not None and state.is_contiguous():
        x, step, b, c = inputs
        heads = x[..., None], b[:, None], c[:, None]
        return recurrent.state_space(library, *heads, step, decay, skip, state)[..., 0]
    out = torch.empty_like(inputs.x)
    for token, (x, step, b, c) in enumerate(zip(*inputs, strict=True)):
        state.mul_((step[:, None] * decay).exp_()).addcmul_((step * x)[:, None], b)
        out[token] = state @ c
    return out.addcmul_(inputs.x, skip)
