"""Products with small matrices: exact, and the same bits for a token in any company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mrs.kernels.dense_products import linear, multiply_heads

pytestmark = pytest.mark.usefixtures("library")
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.manual_seed(seed))


def transposed(weights: Tensor) -> Tensor:
    """The same weights (H, R, C), those of a column adjacent in memory."""
    return weights.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (7, 48), (40, 20), (70, 130)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_each_head_has_its_matrix(
    dtype: torch.dtype, rows: int, columns: int, is_transposed: bool
) -> None:
    weights = normal(3, rows, columns, seed=1).to(dtype)
    if is_transposed:
        weights = transposed(weights)
    # As in latent attention: a part of a larger tensor.
    x = normal(21, 3, columns + 5)[..., :columns]
    whole = multiply_heads(x, weights)
    expected = torch.einsum("nhc,hrc->nhr", x.double(), weights.double())
    torch.testing.assert_close(whole.double(), expected, atol=2e-4, rtol=1e-5)
    for tokens in (1, 5, 9):
        parts = [multiply_heads(part, weights) for part in x.split(tokens)]
        assert torch.equal(torch.cat(parts), whole)
    torch.set_num_threads(3)
    assert torch.equal(multiply_heads(x, weights), whole)


def test_a_bias_is_added() -> None:
    x, weight, bias = normal(5, 33), normal(6, 33, seed=1), normal(6, seed=2)
    torch.testing.assert_close(linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))
    assert torch.equal(linear(x, weight, bias), linear(x, weight) + bias)
