"""The CUDA kernels on a GPU: products of every format, and graphs that have captured them."""

from __future__ import annotations

import pytest
import torch

from mrs.kernels.cuda.fragments import FRAGMENT_FORMATS
from mrs.kernels.cuda.launcher import device_launcher
from mrs.kernels.cuda.products import multiply
from mrs.kernels.cuda.self_test import (
    COLUMNS,
    LARGEST_ERROR,
    LARGEST_ROW_ERROR,
    ROWS,
    largest_error,
    missing_reason,
    random_matrix,
    row_error,
)
from mrs.quantization.gguf.fields import PLANE_LAYOUTS

pytestmark = pytest.mark.needs("a CUDA device")
GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _kernels_can_run() -> None:
    if (reason := missing_reason(GPU)) is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("name", [*FRAGMENT_FORMATS, "BF16"])
def test_products(name: str) -> None:
    launcher = device_launcher(GPU)
    assert largest_error(name, PLANE_LAYOUTS.get(name), GPU, launcher) <= LARGEST_ERROR


def test_what_is_computed_of_rows() -> None:
    assert row_error(GPU, device_launcher(GPU)) <= LARGEST_ROW_ERROR


@pytest.mark.parametrize("tokens", [1, 16])
def test_a_graph_has_the_launches(tokens: int) -> None:
    """A layer's worth of them, of which each may begin before the one before it is done."""
    launcher, generator = device_launcher(GPU), torch.Generator().manual_seed(0)
    layout = PLANE_LAYOUTS["Q4_K"]
    first, _ = random_matrix("Q4_K", layout, COLUMNS, COLUMNS, GPU, generator)
    second, _ = random_matrix("Q4_K", layout, ROWS, COLUMNS, GPU, generator)
    norm = torch.rand(COLUMNS, device=GPU)
    x = torch.randn(tokens, COLUMNS, device=GPU, dtype=torch.bfloat16)

    def layer() -> torch.Tensor:
        y = x
        for _ in range(4):
            inner = multiply(y, [first] * 2, launcher, norm=norm, eps=1e-6, activation="silu")
            y = multiply(inner, [first], launcher, added=y)
        return multiply(y, [second, second], launcher, dtype=torch.float32)

    layer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer()
    for _ in range(20):
        x.normal_()
        graph.replay()
        assert torch.equal(captured, layer())
