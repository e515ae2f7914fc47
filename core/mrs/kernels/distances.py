"""The number that stands for how far a key is from a query: its bucket.

Near keys have a bucket for each distance. Farther ones share it: the buckets grow like a logarithm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: The distance from which on all keys have MPNet's and T5's last bucket.
MOST_DISTANCE = 128


def distances(tokens: int) -> Tensor:
    """Query less key of all pairs of a text: `tokens` - 1 first, so keys in order of a query's."""
    return torch.arange(tokens - 1, -tokens, -1)


def bias_buckets(query_less_key: Tensor, buckets: int) -> Tensor:
    """Buckets of distances as in T5 (arXiv 1910.10683): half of them for keys after the query.

    Of each half, half are for single distances.
    """
    half, near = buckets // 2, buckets // 4
    distance = query_less_key.abs()
    steps = torch.log(distance.float() / near) / math.log(MOST_DISTANCE / near) * (half - near)
    far = (near + steps.clamp_min(0).long()).clamp_max(half - 1)
    after = half * (query_less_key < 0)
    return after + torch.where(distance < near, distance, far)


def span_rows(query_less_key: Tensor, span: int, buckets: int, most: int) -> Tensor:
    """Rows of a table of 2 * `span` relative positions, as in DeBERTa (arXiv 2006.03654).

    With `buckets`, distances from half of them to `most` are rounded up to that many.
    """
    rounded = query_less_key
    if buckets:
        half, distance = buckets // 2, query_less_key.abs()
        whole = torch.log(torch.tensor((most - 1) / half))
        steps = torch.ceil(torch.log(distance.clamp_min(half) / half) / whole * (half - 1)) + half
        far = (steps * query_less_key.sign()).long()
        rounded = torch.where(distance <= half, query_less_key, far)
    return (rounded + span).clamp(0, 2 * span - 1)


def by_pairs(of_distances: Tensor) -> Tensor:
    """What each of T tokens has for its `distances`, (H, T, 2 T - 1), by the other token: a view.

    Row i of the result (H, T, T) are T of its values, from T - 1 - i on.
    """
    heads, tokens, width = of_distances.shape
    strides, first = of_distances.stride(), of_distances.storage_offset() + tokens - 1
    return of_distances.as_strided((heads, tokens, tokens), (strides[0], width - 1, 1), first)


def same_by_pairs(of_distances: Tensor) -> Tensor:
    """The same of what all tokens have alike, (H, 2 T - 1): a new tensor (H, T, T)."""
    heads, width = of_distances.shape
    tokens, first = (width + 1) // 2, of_distances.storage_offset()
    by_head, step = of_distances.stride()
    return of_distances.as_strided((heads, tokens, tokens), (by_head, step, step), first).flip(1)
