"""The embedding of a prompt is the same to the bit in chunks of any size."""

from __future__ import annotations

import pytest
import torch

from mrs.engine.pooling import Pooling, PoolingKind


@pytest.mark.parametrize("kind", ["mean", "last"])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 64])
def test_in_chunks(kind: PoolingKind, chunk_tokens: int) -> None:
    scales = torch.randn(150, 40, generator=torch.manual_seed(1)).mul(8).exp()
    hidden = torch.randn(150, 40, generator=torch.manual_seed(0)) * scales
    whole, chunked = Pooling(kind), Pooling(kind)
    whole.add(hidden, is_first=True)
    for first, rows in enumerate(hidden.split(chunk_tokens)):
        chunked.add(rows, is_first=first == 0)
    assert chunked.vector() == whole.vector()
    mean = hidden.double().mean(0) if kind == "mean" else hidden[-1].double()
    expected = mean / mean.norm()
    torch.testing.assert_close(torch.tensor(whole.vector(), dtype=torch.float64), expected)
