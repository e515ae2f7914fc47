"""Linear attention by the gated delta rule (arXiv 2412.06464)."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.cpu import elementwise, recurrent
from mrs.kernels.workspace.delta_rule import CHUNK_TOKENS

L2_EPS = 1e-6


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    tiled: bool = False,
) -> Tensor:
    """Update the state S with each token in order, and read it: (T, H, Dv).

    q and k are (T, KH, D), v is (T, H, Dv), `log_decay` and `beta` are (T, H); `state`
    (H, D, Dv) is updated in place. All are float32. Head h has the queries and keys of
    h // (H / KH), or h % KH if they are `tiled`. For each token:

        S = exp(log_decay) * S
        S = S + beta * k^T (v - k S)
        out = q S

    The native library computes it like that, so that a token has the same bits in any chunk.
    torch computes chunks of CHUNK_TOKENS.
    """
    library = elementwise.library_for(v)
    if library is not None and state.is_contiguous():
        return recurrent.delta_rule(library, q, k, v, log_decay, beta, state, tiled=tiled)
    repeats = v.shape[1] // q.shape[1]
    if repeats > 1:
        q, k = (
            x.repeat(1, repeats, 1) if tiled else x.repeat_interleave(repeats, dim=1)
            for x in (q, k)
        )
    inputs = [x.transpose(0, 1) for x in (q, k, v, log_decay, beta)]
    outs = []
    for start in range(0, q.shape[0], CHUNK_TOKENS):
        chunk = [x[:, start : start + CHUNK_TOKENS] for x in inputs]
        outs.append(_chunk(chunk, state).transpose(0, 1))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _chunk(inputs: list[Tensor], state: Tensor) -> Tensor:
    """The rule for C tokens, all tensors with heads first; returns (H, C, Dv).

    With G_i the sum of the log decays up to token i, the update u_i = beta_i (v_i - k_i S) of
    token i is

        u_i = beta_i (v_i - exp(G_i) k_i S_0 - sum over j < i of exp(G_i - G_j) (k_i k_j) u_j),

    a triangular system for all u of the chunk.
    """
    q, k, v, log_decay, beta = inputs
    total = log_decay.cumsum(-1)  # G: (H, C)
    count = total.shape[1]
    decay = total[:, :, None] - total[:, None, :]
    if count > 1:
        later = torch.ones(count, count, dtype=torch.bool, device=q.device).triu(1)
        decay.masked_fill_(later, float("-inf"))
    decay.exp_()
    system = (k @ k.transpose(1, 2)) * decay * beta[..., None]
    decay_from_start = total.exp()[..., None]  # (H, C, 1)
    right_side = beta[..., None] * (v - decay_from_start * (k @ state))
    # `unitriangular` solves as if the diagonal were 1.
    updates: Tensor = torch.linalg.solve_triangular(
        system, right_side, upper=False, unitriangular=True
    )
    out: Tensor = decay_from_start * (q @ state) + ((q @ k.transpose(1, 2)) * decay) @ updates
    decay_to_end = (total[:, -1:] - total).exp()[..., None]
    state.mul_(decay_from_start[:, -1:]).add_((decay_to_end * k).transpose(1, 2) @ updates)
    return out


def l2_normalize(x: Tensor, scale: float = 1.0) -> Tensor:
    """scale * x (…, D) / sqrt(sum(x^2) + L2_EPS), in float32."""
    size = x.shape[-1]
    library = elementwise.library_for(x)
    if library is not None:  # the RMS norm, whose mean is the sum divided by D
        weight = torch.full((size,), scale * size**-0.5)
        return elementwise.rms_norm(library, x, weight, L2_EPS / size)
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS).mul_(scale)
