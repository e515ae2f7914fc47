"""Linear attention by the gated delta rule (arXiv 2412.06464)."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.sizes.delta import CHUNK_TOKENS


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> Tensor:
    """What each token reads from a state that the tokens up to it have corrected.

    q and k are (T, H, D), v is (T, H, Dv), `log_decay` and `beta` are (T, H); `state`
    (H, D, Dv) is updated in place. All are float32. For each token the state decays by
    exp(log_decay), then k's reading of it moves to v by the share beta; the result (T, H, Dv) is
    q's reading.
    """
    given = [t.transpose(0, 1) for t in (q, k, v, log_decay, beta)]
    outs = []
    for start in range(0, q.shape[0], CHUNK_TOKENS):
        outs.append(_chunk([t[:, start : start + CHUNK_TOKENS] for t in given], state))
    return torch.cat(outs, dim=1).transpose(0, 1)


def _chunk(given: list[Tensor], state: Tensor) -> Tensor:
    """The rule for C tokens, all tensors with heads first; returns (H, C, Dv).

    With G the sum of log decays so far, token i's correction is u_i = beta_i (v_i - exp(G_i) S k_i
    - sum over j < i of exp(G_i - G_j) (k_i k_j) u_j): a triangular system for all u.
    """
    q, k, v, log_decay, beta = given
    total = log_decay.cumsum(-1)  # (H, C)
    later = torch.ones(total.shape[1], total.shape[1], dtype=torch.bool, device=q.device).triu(1)
    between = (total[:, :, None] - total[:, None, :]).masked_fill(later, float("-inf")).exp()
    system = (k @ k.transpose(1, 2)) * between * beta[..., None]
    since = total.exp()[..., None]  # (H, C, 1)
    wanted = beta[..., None] * (v - since * (k @ state))
    # The diagonal counts as ones.
    corrections: Tensor = torch.linalg.solve_triangular(
        system, wanted, upper=False, unitriangular=True
    )
    out: Tensor = since * (q @ state) + ((q @ k.transpose(1, 2)) * between) @ corrections
    left = (total[:, -1:] - total).exp()[..., None]
    state.mul_(since[:, -1:]).add_((left * k).transpose(1, 2) @ corrections)
    return out


def unit_length(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x (…, D) divided by its length, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)
