"""Buckets of distances are those of transformers, and pairs of tokens get their distance's."""

from __future__ import annotations

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from mrs.kernels.distances import bias_buckets, by_pairs, distances, same_by_pairs, span_rows


@pytest.mark.parametrize("tokens", [1, 2, 17, 700])
def test_buckets_of_biases(tokens: int) -> None:
    away = distances(tokens)
    theirs = MPNetEncoder.relative_position_bucket(-away, num_buckets=32)
    assert torch.equal(bias_buckets(away, 32), theirs)


@pytest.mark.parametrize("buckets", [0, 8, 96, 256])
@pytest.mark.parametrize("most", [512, 300])
@pytest.mark.parametrize("tokens", [1, 3, 200, 1500])
def test_rows_of_positions(tokens: int, most: int, buckets: int) -> None:
    away, span = distances(tokens), buckets or most
    theirs = make_log_bucket_position(away, buckets, most).long() if buckets else away
    expected = (theirs + span).clamp(0, 2 * span - 1)
    assert torch.equal(span_rows(away, span, buckets, most), expected)


@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_pairs_have_what_their_distance_has(tokens: int) -> None:
    values = torch.randn(3, tokens, 2 * tokens - 1)
    found, same = by_pairs(values), same_by_pairs(values[:, 0])
    for query in range(tokens):
        for key in range(tokens):
            column = int((distances(tokens) == query - key).nonzero())
            assert torch.equal(found[:, query, key], values[:, query, column])
            assert torch.equal(same[:, query, key], values[:, 0, column])
