"""Attention in which each query has its own choice of keys."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.dense_products import linear
from mrs.kernels.workspace.attention import queries_at_once


def index_scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """An indexer's scores (T, S) of the keys (S, D), for q (T, H, D) with `weights` (T, H).

    They are sum_h(weight_h * relu(q_h * k)), in float32 as the keys are.
    """
    scores = torch.zeros(len(q), len(keys), device=keys.device)
    for head in range(q.shape[1]):
        products = linear(q[:, head].contiguous(), keys)
        scores.addcmul_(products.relu_(), weights[:, head, None])
    return scores


def choose_keys(scores: Tensor, top_k: int) -> Tensor:
    """The positions (T, K) of the best scores (T, S) of each of the last T tokens of a sequence.

    They are in ascending order: those that are not after the token come first, of which there are
    fewer than K = min(`top_k`, S) before the first tokens. Overwrites the scores.
    """
    tokens, context = scores.shape
    positions = torch.arange(context, device=scores.device)
    scores.masked_fill_(positions > positions[context - tokens :, None], float("-inf"))
    best = scores.topk(min(top_k, context), dim=-1, sorted=False)
    return best.indices.sort(dim=-1).values


def attend_to_keys(
    q: Tensor, keys: Tensor, value_dim: int, positions: Tensor, scale: float
) -> Tensor:
    """Attention of q (T, H, D) to keys (S, D) at its `positions` (T, K): (T, H * value_dim).

    The first `value_dim` values of a key are its value. Positions are as `choose_keys` returns
    them; what is after those that a query may see is not read. The result has q's dtype.
    """
    tokens, chosen = positions.shape
    ends = torch.arange(len(keys) - tokens, len(keys), device=keys.device)
    is_hidden = torch.arange(chosen, device=keys.device) > ends[:, None]
    indices = positions.masked_fill(is_hidden, 0)
    out = q.new_empty(*q.shape[:2], value_dim)
    step = queries_at_once(chosen, keys.shape[1])
    for start in range(0, len(q), step):
        some = slice(start, start + step)
        attended = keys[indices[some]].float()  # (t, K, D)
        scores = torch.bmm(q[some].float(), attended.transpose(1, 2)).mul_(scale)
        scores.masked_fill_(is_hidden[some, None], float("-inf"))
        out[some] = torch.bmm(scores.softmax(-1), attended[..., :value_dim])
    return out.flatten(1)
