"""Why the Triton kernels are not used is said, and never ends a load."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from mrs.kernels.triton import decode_check, self_test
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.quantization import targets
from mrs.quantization.gguf.fields import PLANE_LAYOUTS

GPU = torch.device("cuda", 0)
NAN = float("nan")
LARGEST_ERROR_OF = self_test.largest_error  # the tests replace it


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that passes the check, unless a test says otherwise."""
    monkeypatch.setattr(self_test, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(self_test, "largest_error", lambda layout, device: 1e-3)
    targets._has_triton_kernels.cache_clear()
    yield
    targets._has_triton_kernels.cache_clear()


def test_all_is_well() -> None:
    assert self_test.products_unavailable_reason(GPU) is None
    assert targets._has_triton_kernels(GPU, self_test.LAYOUTS)


def test_other_devices_are_not_asked() -> None:
    assert not targets._has_triton_kernels(torch.device("mps"), self_test.LAYOUTS)
    assert not targets._has_triton_kernels(torch.device("cpu"), self_test.LAYOUTS)


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "find_spec", lambda name: None)
    assert self_test.products_unavailable_reason(GPU) == "Triton is not installed"


def test_an_old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "this GPU" in (self_test.products_unavailable_reason(GPU) or "")


@pytest.mark.parametrize("error", [0.2, NAN])
@pytest.mark.parametrize("wrong", [self_test.LAYOUTS[0], self_test.LAYOUTS[-1]])
def test_wrong_products(
    error: float, wrong: self_test.PlaneLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one layout; no other one hides that it is no number."""
    errors = {wrong: error}
    monkeypatch.setattr(self_test, "largest_error", lambda layout, _: errors.get(layout, 1e-3))
    assert "error of" in (self_test.products_unavailable_reason(GPU) or "")


def test_products_of_many_tokens_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def matmul(matrix: PlaneMatrix, x: Tensor) -> Tensor:
        product = x.float() @ matrix.rows(torch.arange(matrix.shape[0]), torch.float32).T
        return product if len(x) == 1 else product * NAN

    monkeypatch.setattr(PlaneMatrix, "decode_in_one_launch", PlaneMatrix.rows)
    monkeypatch.setattr(PlaneMatrix, "matmul", matmul)
    assert not LARGEST_ERROR_OF(self_test.LAYOUTS[0], torch.device("cpu")) <= 1


@pytest.mark.parametrize("error", [1e-3, 0.2, NAN])
@pytest.mark.parametrize("layout", [None, self_test.LAYOUTS[-1]])
def test_blocks_are_checked_with_the_weights_of_a_model(
    error: float, layout: self_test.PlaneLayout | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other layouts may be right."""

    def error_of(device: torch.device, layout: self_test.PlaneLayout | None) -> float:
        return error if layout == wrong else 1e-3

    wrong = layout
    monkeypatch.setattr(decode_check, "has_triton_attention", lambda device: True)
    for name in ("decode", "expert"):
        monkeypatch.setattr(decode_check, f"{name}_error", error_of)
        is_right = getattr(decode_check, f"has_{name}_blocks").__wrapped__
        assert is_right(GPU, layout) == (error == 1e-3)
        assert is_right(GPU, self_test.LAYOUTS[0])


def test_a_compiler_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(layout: object, device: object) -> float:
        raise RuntimeError("Failed to find C compiler.\nMore lines")

    monkeypatch.setattr(self_test, "largest_error", fail)
    with caplog.at_level(logging.WARNING):
        assert not targets._has_triton_kernels(GPU, self_test.LAYOUTS)
        assert not targets._has_triton_kernels(GPU, self_test.LAYOUTS)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        "cuda:0 has to decode weights for every product: "
        "Triton failed with RuntimeError: Failed to find C compiler."
    )


@pytest.mark.parametrize("columns", [256, 288])
@pytest.mark.parametrize("format_", ["Q4_0", "Q8_0"])
def test_decode_blocks_are_checked_with_the_words_that_a_model_reads(
    format_: str, columns: int
) -> None:
    layout = PLANE_LAYOUTS[format_].for_columns(columns)
    width = decode_check.hidden_size(layout)
    assert PlaneMatrix(layout, 1, width, torch.device("cpu")).layout == layout
