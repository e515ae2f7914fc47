"""Why the Triton kernels are not used is said, and never ends a load."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from mrs.kernels.triton import self_test
from mrs.load import targets

GPU = torch.device("cuda", 0)


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
    assert self_test.triton_unavailable_reason(GPU) is None
    assert targets._has_triton_kernels(GPU, self_test.LAYOUTS)


def test_other_devices_are_not_asked() -> None:
    assert not targets._has_triton_kernels(torch.device("mps"), self_test.LAYOUTS)
    assert not targets._has_triton_kernels(torch.device("cpu"), self_test.LAYOUTS)


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "find_spec", lambda name: None)
    assert self_test.triton_unavailable_reason(GPU) == "Triton is not installed"


def test_an_old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "this GPU" in (self_test.triton_unavailable_reason(GPU) or "")


@pytest.mark.parametrize("error", [0.2, float("nan")])
def test_wrong_products(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "largest_error", lambda layout, device: error)
    assert "error of" in (self_test.triton_unavailable_reason(GPU) or "")


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
