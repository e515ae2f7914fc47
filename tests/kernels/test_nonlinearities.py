"""Activation functions give a value the same bits wherever it is in a tensor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.kernels.nonlinearities import activated, cut_off, gated, softplus

pytestmark = pytest.mark.usefixtures("library")
X = torch.randn(3000, generator=torch.manual_seed(0)) * 5
UP = torch.randn(3000, generator=torch.manual_seed(1))
EXACT = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * F.sigmoid(1.702 * x),
    "sigmoid": F.sigmoid,
}


def pieces(x: Tensor) -> list[Tensor]:
    """Pieces of every size up to 70; the last one is the rest."""
    return list(x.clone().split([*range(1, 71), len(x) - 70 * 71 // 2]))


@pytest.mark.parametrize("name", EXACT)
def test_alone_and_gated(name: str) -> None:
    whole = activated(name, X.clone())
    torch.testing.assert_close(whole.double(), EXACT[name](X.double()), atol=1e-6, rtol=1e-5)
    assert torch.equal(torch.cat([activated(name, part.clone()) for part in pieces(X)]), whole)
    parts = [gated(name, a.clone(), b) for a, b in zip(pieces(X), pieces(UP), strict=True)]
    assert torch.equal(torch.cat(parts), gated(name, X.clone(), UP.clone()))
    torch.testing.assert_close(torch.cat(parts), whole * UP)


def test_softplus() -> None:
    whole = softplus(X.clone())
    exact = F.softplus(X.double(), threshold=40)
    torch.testing.assert_close(whole.double(), exact, atol=1e-12, rtol=1e-6)
    assert torch.equal(torch.cat([softplus(part.clone()) for part in pieces(X)]), whole)


def test_clamped() -> None:
    gate, up = X.clamp(max=3.0).double(), UP.clamp(-3.0, 3.0).double()
    whole = gated("clamped_swiglu", X.clone(), UP.clone(), 3.0)
    expected = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    torch.testing.assert_close(whole.double(), expected, atol=1e-6, rtol=1e-5)


def test_cut_off() -> None:
    """Each row by itself, whose values have a mean."""
    x = X.view(30, 100) + 3
    deviation, mean = torch.std_mean(x.double(), -1, correction=0, keepdim=True)
    whole = cut_off(x.clone(), 0.7)
    torch.testing.assert_close(
        whole.double(), F.relu(x - mean - 0.7 * deviation), atol=1e-5, rtol=0
    )
    assert torch.equal(torch.cat([cut_off(row.clone(), 0.7) for row in x.split(1)]), whole)
