"""The recurrence of a selective state space (Mamba 2, arXiv 2405.21060)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise, recurrent
from mrs.kernels.workspace.state_space import CHUNK_TOKENS


class StateSpaceInput(NamedTuple):
    """T tokens of one sequence, in float32: x (T, H, P), b and c (T, G, N), step (T, H).

    The heads of a group are adjacent.
    """

    x: Tensor
    b: Tensor
    c: Tensor
    step: Tensor


def scan(inputs: StateSpaceInput, decay: Tensor, skip: Tensor, state: Tensor, first: int) -> Tensor:
    """Update the state S (H, P, N) of each head with each token in order, and read it: (T, H, P).

    `decay` (H,) is negative; `first` is the position of the first token. For each token:

        S = exp(decay * step) * S + step * x^T b
        out = S c + skip * x

    The native library computes it like that; torch computes chunks of CHUNK_TOKENS.
    """
    library = elementwise.library_for(inputs.x)
    if library is not None and state.is_contiguous():
        return recurrent.state_space(library, *inputs, decay, skip, state)
    tokens, outs = inputs.x.shape[0], []
    start = 0
    while start < tokens:
        end = min(start + CHUNK_TOKENS - (first + start) % CHUNK_TOKENS, tokens)
        chunk = StateSpaceInput(*(x[start:end].transpose(0, 1) for x in inputs))
        outs.append(_chunk(chunk, decay, state).transpose(0, 1))
        start = end
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    return out.addcmul_(inputs.x, skip[:, None])


def _chunk(inputs: StateSpaceInput, decay: Tensor, state: Tensor) -> Tensor:
    """The recurrence for C tokens, all tensors with heads or groups first; returns (H, C, P).

    With L_i the sum of decay * step up to token i,

        out_i = exp(L_i) S_0 c_i + sum over j <= i of exp(L_i - L_j) step_j (b_j c_i) x_j.
    """
    x, b, c, step = inputs
    heads, tokens, size = x.shape
    groups, repeats = b.shape[0], heads // b.shape[0]
    total = (decay[:, None] * step).cumsum(-1)  # L: (H, C)
    weights = total[:, :, None] - total[:, None, :]
    if tokens > 1:
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        weights.masked_fill_(later, float("-inf"))
    weights.exp_().mul_(step[:, None, :])
    weights.view(groups, repeats, tokens, tokens).mul_((c @ b.transpose(1, 2))[:, None])
    out = weights @ x
    rows = state.view(groups, repeats * size, -1)
    kept = (rows @ c.transpose(1, 2)).view(heads, size, tokens).transpose(1, 2)
    out.addcmul_(total.exp()[..., None], kept)
    to_end = (total[:, -1:] - total).exp_().mul_(step)
    added = (to_end[..., None] * x).transpose(1, 2).reshape(groups, repeats * size, tokens)
    rows.view(heads, -1).mul_(total[:, -1:].exp())
    rows.add_(added @ b)
    return out
