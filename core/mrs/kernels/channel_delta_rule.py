"""Linear attention by the delta rule with a decay of each channel (arXiv 2510.26692)."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise, recurrent
from mrs.kernels.workspace.channel_delta_rule import CHUNK_TOKENS


def channel_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> Tensor:
    """Update the state S with each token in order, and read it: (T, H, Dv).

    q, k and `log_decay` are (T, H, D), v is (T, H, Dv), `beta` is (T, H); `state` (H, D, Dv) is
    updated in place. All are float32. For each token:

        S = diag(exp(log_decay)) S
        S = S + beta * k^T (v - k S)
        out = q S

    The native library computes it like that, so that a token has the same bits in any chunk.
    torch computes chunks of CHUNK_TOKENS.
    """
    library = elementwise.library_for(v)
    if library is not None and state.is_contiguous():
        return recurrent.delta_rule(library, q, k, v, log_decay, beta, state)
    inputs = [x.transpose(0, 1) for x in (q, k, v, log_decay, beta)]
    out = torch.empty(v.shape, device=v.device)
    for start in range(0, q.shape[0], CHUNK_TOKENS):
        rows = slice(start, start + CHUNK_TOKENS)
        out[rows] = _chunk([x[:, rows] for x in inputs], state).transpose(0, 1)
    return out


def _chunk(inputs: list[Tensor], state: Tensor) -> Tensor:
    """The rule for C tokens, all tensors with heads first; returns (H, C, Dv).

    With G_i the sum of the log decays up to token i, the updates u_i of the tokens solve

        u_i = beta_i (v_i - (k_i exp(G_i)) S_0 - sum over j < i of (k_i exp(G_i - G_j) k_j) u_j).
    """
    q, k, v, log_decay, beta = inputs
    total = log_decay.cumsum(1)  # G: (H, C, D)
    count = total.shape[1]
    decay = total[:, :, None] - total[:, None]
    if count > 1:
        later = torch.ones(count, count, dtype=torch.bool, device=q.device).triu(1)
        decay.masked_fill_(later[:, :, None], float("-inf"))
    decay.exp_().mul_(k[:, None])  # (H, C, C, D): exp(G_i - G_j) k_j
    system = torch.linalg.vecdot(decay, k[:, :, None]) * beta[..., None]
    scores = torch.linalg.vecdot(decay, q[:, :, None])
    from_start = total.exp()
    right_side = beta[..., None] * (v - (k * from_start) @ state)
    # `unitriangular` solves as if the diagonal were 1.
    updates: Tensor = torch.linalg.solve_triangular(
        system, right_side, upper=False, unitriangular=True
    )
    out: Tensor = (q * from_start) @ state + scores @ updates
    to_end = (total[:, -1:] - total).exp_().mul_(k)
    state.mul_(from_start[:, -1, :, None]).add_(to_end.transpose(1, 2) @ updates)
    return out
