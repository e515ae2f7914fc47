"""Which experts a token goes to, and with what weights."""

from __future__ import annotations

import torch
from torch import Tensor


def choose_experts(
    scores: Tensor, count: int, *, correction: Tensor | None, groups: int, best: int, kept: int
) -> Tensor:
    """The numbers of the `count` experts with the highest scores, (N, count).

    `scores` is (N, E); `correction` (E,) is added to them first. Experts stand in `groups` equal
    groups, of which the `kept` take part whose `best` highest scores have the largest sums
    (DeepSeek V2 and V3, arXiv 2405.04434 and 2412.19437).
    """
    if correction is not None:
        scores = scores + correction
    if kept < groups:
        grouped = scores.view(len(scores), groups, -1)  # (N, G, E / G)
        worth = grouped.topk(best, dim=-1).values.sum(-1)
        left_out = torch.ones_like(worth, dtype=torch.bool)
        left_out.scatter_(-1, worth.topk(kept, dim=-1).indices, False)
        scores = grouped.masked_fill(left_out[..., None], float("-inf")).flatten(-2)
    return scores.topk(count, dim=-1).indices


def sparsemixer_top_k(scores: Tensor, count: int, jitter: float) -> tuple[Tensor, Tensor]:
    """Weights and numbers of `count` experts, each the best of those left, (N, count) both.

    An expert weighs its softmax among those left whose scores, (N, E), are so close to its own
    that their distance is at most `2 * jitter` of the larger of the two (SparseMixer as it runs
    after training, arXiv 2409.12136).
    """
    left, weights, chosen = scores, [], []
    for _ in range(count):
        best, expert = left.max(dim=-1, keepdim=True)
        distance = (best - scores) / torch.maximum(scores.abs(), best)
        close = left.masked_fill(distance > 2 * jitter, float("-inf"))
        weights.append(close.softmax(-1).gather(-1, expert))
        chosen.append(expert)
        left = left.scatter(-1, expert, float("-inf"))
    return torch.cat(weights, -1), torch.cat(chosen, -1)
