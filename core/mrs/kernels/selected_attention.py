"""Attention in which each query has its own choice of keys."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.workspace.attention import queries_at_once

#: Indices and visibility of the keys that each query has chosen: what `choose_keys` returns.
KeyChoice = tuple[Tensor, Tensor]


def choose_keys(scores: Tensor, top_k: int) -> KeyChoice:
    """The keys with the best scores (T, S) for each of the last T tokens of a sequence.

    Returns their indices (T, K), and a mask (T, K) of those that are not after the query; there are
    fewer than K = min(`top_k`, S) before the first tokens. Overwrites the scores.
    """
    tokens, context = scores.shape
    positions = torch.arange(context, device=scores.device)
    scores.masked_fill_(positions > positions[context - tokens :, None], float("-inf"))
    best = scores.topk(min(top_k, context), dim=-1)
    return best.indices, best.values > float("-inf")


def attend_to_keys(
    q: Tensor, keys: Tensor, value_dim: int, choice: KeyChoice, scale: float
) -> Tensor:
    """Attention of q (T, H, D) to its `choice` of keys (S, D): (T, H * value_dim), in q's dtype.

    The first `value_dim` values of a key are its value. `choice` is what `choose_keys` returns.
    """
    indices, is_visible = choice
    out = q.new_empty(*q.shape[:2], value_dim)
    step = queries_at_once(indices.shape[1], keys.shape[1])
    for start in range(0, len(q), step):
        some = slice(start, start + step)
        chosen = keys[indices[some]].float()  # (t, K, D)
        scores = torch.bmm(q[some].float(), chosen.transpose(1, 2)).mul_(scale)
        scores.masked_fill_(~is_visible[some, None], float("-inf"))
        out[some] = torch.bmm(scores.softmax(-1), chosen[..., :value_dim])
    return out.flatten(1)
