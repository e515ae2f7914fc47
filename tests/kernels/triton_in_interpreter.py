"""The Triton kernels against float64 products of what gguf-py decodes, in Triton's interpreter.

`test_triton.py` runs this file with `TRITON_INTERPRET=1`, which must be set before Triton is
imported.
"""

from __future__ import annotations

import pytest
import torch
from packed_blocks import random_blocks, reference_values, same_bytes
from torch import Tensor

from mrs.formats import FORMATS
from mrs.kernels.triton import self_test
from mrs.kernels.triton.plane_matrix import FEW_TOKENS, PlaneMatrix
from mrs.quantization.gguf.fields import PLANE_LAYOUTS, split_blocks

#: All sizes of groups are one layout but for a number, so that some of each kind stand for all.
FORMAT_NAMES = (
    *(name for name in PLANE_LAYOUTS if not name.startswith(("INT", "FP8"))),
    *("INT2_32", "INT3_64", "INT4_32", "INT4_128", "INT8_64", "FP8_32", "FP8_128"),
)


def in_planes(name: str, blocks: Tensor) -> PlaneMatrix:
    rows, columns = len(blocks), blocks.shape[1] // FORMATS[name].block_bytes
    columns *= FORMATS[name].block_elements
    matrix = PlaneMatrix(PLANE_LAYOUTS[name], rows, columns, torch.device("cpu"))
    matrix.fill(split_blocks(blocks, FORMATS[name]))
    return matrix


def random_x(tokens: int, columns: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(tokens))
    return x.to(dtype)


def relative_error(result: Tensor, expected: Tensor) -> float:
    if result.dtype == torch.bfloat16:
        # The interpreter cuts float32 off where GPUs round it.
        expected = (expected.float().view(torch.int32) & ~0xFFFF).view(torch.float32).double()
    return float((result.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize(
    ("tokens", "rows", "columns", "dtype"),
    [
        (1, 5, None, torch.float32),
        (1, 3, 2304, torch.bfloat16),
        (3, 4, 768, torch.float16),
        (FEW_TOKENS, 1, 256, torch.bfloat16),
        (FEW_TOKENS + 1, 5, None, torch.float32),
        (20, 67, 768, torch.bfloat16),
        (130, 2, 256, torch.float16),
    ],
)
def test_multiplies(
    name: str, tokens: int, rows: int, columns: int | None, dtype: torch.dtype
) -> None:
    """Without `columns`, rows are one block."""
    columns = columns or PLANE_LAYOUTS[name].block
    blocks = random_blocks(name, rows, columns)
    x = random_x(tokens, columns, dtype)
    expected = x.double() @ reference_values(name, blocks).double().T
    result = in_planes(name, blocks).matmul(x)
    assert result.dtype == dtype
    assert relative_error(result, expected) < 2e-3


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_decodes_rows(name: str) -> None:
    """As an embedding looks them up: in any order, and twice."""
    columns = 5 * PLANE_LAYOUTS[name].block
    blocks = random_blocks(name, 7, columns)
    ids = torch.tensor([6, 0, 3, 6])
    expected = reference_values(name, blocks)[ids].double()
    found = in_planes(name, blocks).decode_in_one_launch(ids, torch.float32)
    assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize("tokens", [1, FEW_TOKENS + 1])
def test_runs_give_the_same(tokens: int) -> None:
    blocks = random_blocks("Q5_K", 6, 768)
    x = random_x(tokens, 768, torch.float32)
    first = in_planes("Q5_K", blocks).matmul(x)
    assert torch.equal(in_planes("Q5_K", blocks.clone()).matmul(x.clone()), first)


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("half", [0x0001, 0x03FF, 0x7BFF])
@pytest.mark.parametrize("repeats", [1, 2])
def test_survives_extreme_blocks(name: str, half: int, repeats: int) -> None:
    columns = PLANE_LAYOUTS[name].block
    codes = (0x00, 0x7F, 0x80, 0xFF)
    blocks = torch.cat([same_bytes(name, 1, columns, code, half) for code in codes])
    values = reference_values(name, blocks).double()
    factors = torch.tensor([0.0, 1e-45, 1e-30, 1.0, 1e25]).repeat(repeats)
    x = (random_x(len(factors), columns, torch.float32) + 0.5) * factors[:, None]
    assert (len(x) <= FEW_TOKENS) == (repeats == 1)
    result = in_planes(name, blocks).matmul(x).double()
    assert result.isfinite().all()
    # Where weights cancel, errors are measured against what was added up. Few tokens add up codes
    # before they know which one is zero: as a sum in float32 of the largest weights is rounded.
    # Tiles cut weights off where halves end, and only scales that are no halves can make smaller
    # ones.
    error = (result - x.double() @ values.T).abs()
    allowed = 2e-3 * (x.abs().double() @ values.abs().T) + 1e-30
    if repeats == 1:
        allowed += 2**-22 * values.abs().max() * x.abs().double().sum(1, keepdim=True)
    elif name.startswith(("MXFP4", "INT", "FP8")):
        allowed += 2**-24 * x.abs().double().sum(1, keepdim=True)
    exact = repeats == 1 or values.abs().amax(1) <= 65504
    assert (error <= allowed)[:, exact].all()


def test_one_huge_activation_does_not_drown_the_others() -> None:
    blocks = random_blocks("Q8_0", 5, 512)
    blocks[:, 2 + 7] = 0  # weights of column 7
    x = random_x(FEW_TOKENS + 1, 512, torch.float32) * 1e-3
    x[:, 7] = 1e5
    expected = x.double() @ reference_values("Q8_0", blocks).double().T
    assert relative_error(in_planes("Q8_0", blocks).matmul(x), expected) < 2e-3


@pytest.mark.parametrize("tokens", [2, FEW_TOKENS + 1])
def test_not_a_number_stays_visible(tokens: int) -> None:
    matrix = in_planes("Q4_K", random_blocks("Q4_K", 3, 512))
    x = torch.ones(tokens, 512)
    x[1, 300] = float("nan")
    result = matrix.matmul(x)
    assert result[1].isnan().all()
    assert result[0].isfinite().all()
    assert result[2:].isfinite().all()


def test_activations_that_are_no_rows_of_memory() -> None:
    matrix = in_planes("Q8_0", random_blocks("Q8_0", 16, 512))
    for tokens in (4, FEW_TOKENS + 1):
        x = random_x(tokens, 512, torch.float32).T.contiguous().T
        assert not x.is_contiguous()
        assert torch.equal(matrix.matmul(x), matrix.matmul(x.contiguous()))
    assert matrix.matmul(torch.empty(0, 512)).shape == (0, 16)
    assert matrix.matmul(x.double()).dtype == torch.float64


@pytest.mark.parametrize(
    "layout",
    [*self_test.LAYOUTS, *(PLANE_LAYOUTS[name] for name in ("MXFP4", "FP8_128", "INT4_64"))],
)
def test_the_check_before_use(
    layout: self_test.PlaneLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    assert self_test.largest_error(layout, cpu) < self_test.LARGEST_ERROR
    monkeypatch.setattr(
        PlaneMatrix, "_matmul_many_tokens", lambda matrix, x, factors, out: out.fill_(1)
    )
    assert self_test.largest_error(layout, cpu) > 0.5
