"""Routing: which experts compute a token, and with which weights."""

from __future__ import annotations

import torch
from torch import Tensor


def choose_experts(
    scores: Tensor,
    top_k: int,
    *,
    score_correction_bias: Tensor | None,
    n_group: int,
    topk_group: int,
    group_score_experts: int,
) -> Tensor:
    """The indices of the `top_k` experts with the highest scores, (N, top_k).

    `scores` is (N, E); `score_correction_bias` (E,) is added to it first. The experts form
    `n_group` groups of equal size. A group's score is the sum of its `group_score_experts` highest
    scores, and only experts of the `topk_group` best groups can be chosen (DeepSeek V2 and V3,
    arXiv 2405.04434 and 2412.19437).
    """
    if score_correction_bias is not None:
        scores = scores + score_correction_bias
    if topk_group < n_group:
        grouped = scores.view(len(scores), n_group, -1)  # (N, G, E / G)
        group_scores = grouped.topk(group_score_experts, dim=-1).values.sum(-1)
        excluded = torch.ones_like(group_scores, dtype=torch.bool)
        excluded.scatter_(-1, group_scores.topk(topk_group, dim=-1).indices, False)
        scores = grouped.masked_fill(excluded[..., None], float("-inf")).flatten(-2)
    return scores.topk(top_k, dim=-1).indices


def sparsemixer_top_k(scores: Tensor, top_k: int, jitter: float) -> tuple[Tensor, Tensor]:
    """Weights and indices of `top_k` experts, chosen one after another, (N, top_k) both.

    `scores` is (N, E). An expert's weight is its softmax over those remaining experts whose score
    differs from its own by at most `2 * jitter` times the larger of the two (SparseMixer at
    inference, arXiv 2409.12136).
    """
    remaining, weights, indices = scores, [], []
    for _ in range(top_k):
        best, expert = remaining.max(dim=-1, keepdim=True)
        distance = (best - scores) / torch.maximum(scores.abs(), best)
        close = remaining.masked_fill(distance > 2 * jitter, float("-inf"))
        weights.append(close.softmax(-1).gather(-1, expert))
        indices.append(expert)
        remaining = remaining.scatter(-1, expert, float("-inf"))
    return torch.cat(weights, -1), torch.cat(indices, -1)
