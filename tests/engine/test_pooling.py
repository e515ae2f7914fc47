"""The embedding of a prompt is the same to the bit in chunks of any size."""

from __future__ import annotations

import pytest
import torch

from mrs.architecture.pooler import POOLING_KINDS, PoolingKind
from mrs.engine.pooling import Pooling


@pytest.mark.parametrize("kind", POOLING_KINDS)
@pytest.mark.parametrize("chunk_tokens", [1, 7, 64])
def test_in_chunks(kind: PoolingKind, chunk_tokens: int) -> None:
    scales = torch.randn(150, 40, generator=torch.manual_seed(1)).mul(8).exp()
    hidden = torch.randn(150, 40, generator=torch.manual_seed(0)) * scales
    whole, chunked = Pooling(kind), Pooling(kind)
    whole.add(hidden, is_first=True)
    for first, rows in enumerate(hidden.split(chunk_tokens)):
        chunked.add(rows, is_first=first == 0)
    whole.finish(None)
    chunked.finish(None)
    assert chunked.values == whole.values
    pooled = {
        "mean": hidden.double().mean(0),
        "last": hidden[-1].double(),
        "cls": hidden[0].double(),
        "max": hidden.double().amax(0),
    }[kind]
    expected = pooled / pooled.norm()
    torch.testing.assert_close(torch.tensor(whole.values, dtype=torch.float64), expected)


def test_the_first_chunk_replaces_all_before() -> None:
    """A step that was rolled back computes a prompt again."""
    for kind in POOLING_KINDS:
        pooling = Pooling(kind, normalize=False)
        pooling.add(torch.full((3, 2), 9.0), is_first=True)
        pooling.add(torch.full((3, 2), 1.0), is_first=True)
        pooling.finish(lambda pooled: pooled * 2)
        assert list(pooling.values) == [2.0, 2.0]
