"""The packed product as a torch operator."""

from __future__ import annotations

import pytest
import torch
from packed_blocks import random_blocks

from mrs.kernels.cpu.operators import packed_matmul
from mrs.kernels.cpu.packed import PackedMatrix

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
def matrix() -> PackedMatrix:
    blocks = random_blocks("Q4_K", 40, 512)
    packed = PackedMatrix("Q4_K", *blocks.shape[:1], 512)
    packed.fill(blocks)
    return packed


def test_gives_the_same_product(matrix: PackedMatrix) -> None:
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(0))
    result = torch.ops.mrs.packed_matmul(x, matrix.data, "Q4_K", 40)
    assert torch.equal(result, matrix.matmul(x))


def test_can_be_traced(matrix: PackedMatrix) -> None:
    torch.library.opcheck(
        packed_matmul,
        (torch.randn(3, 512), matrix.data, "Q4_K", 40),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_refuses_other_bytes(matrix: PackedMatrix) -> None:
    with pytest.raises(ValueError, match="packed bytes"):
        packed_matmul(torch.randn(3, 512), matrix.data[:-64], "Q4_K", 40)
