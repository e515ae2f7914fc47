"""`tests/bench/cuda_products.py` as far as it goes without a GPU: each of its lines runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mrs.kernels.cuda import self_test, timing
from support.emulated_gpu import GXX, LIMITS, EmulatedGpu

sys.path.insert(0, str(Path(__file__).parent / "bench"))

import cuda_products

CPU = torch.device("cpu")


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda_products.main([]) == 1
    assert capsys.readouterr().out == "Nothing was run: there is no CUDA device.\n"


def test_all_kernels_are_compiled_before_the_first_is_timed() -> None:
    kernels = cuda_products.kernels_of(("Q4_K", "BF16"), (1, 8, 64), LIMITS[90])
    tiles = {option for kernel in kernels for option in kernel.options if "TILES" in option}
    assert tiles == {"-DTILES=1", "-DTILES=2", "-DTILES=4", "-DTILES=8"}
    assert sum(kernel.name == "decode" for kernel in kernels) == 2
    assert any("-DACTIVATION=SILU" in kernel.options for kernel in kernels)


@pytest.mark.full
@pytest.mark.skipif(GXX is None, reason="needs g++")
def test_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the emulated GPU in the place of one, and a clock that always says a second."""
    gpu = EmulatedGpu(tmp_path)
    compiled: list[object] = []

    def graph_s(work: object) -> float:
        work()  # type: ignore[operator]
        return 1.0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1000)
    )
    monkeypatch.setattr(torch, "device", lambda *name: CPU)
    monkeypatch.setattr(cuda_products, "missing_reason", lambda device: None)
    monkeypatch.setattr(cuda_products, "triton_missing_reason", lambda device: "no Triton here")
    monkeypatch.setattr(cuda_products, "device_launcher", lambda device: gpu)
    monkeypatch.setattr(cuda_products, "nvrtc", object)
    monkeypatch.setattr(cuda_products, "cubin_of", lambda *key: compiled.append(key))
    for user in (cuda_products, timing):
        monkeypatch.setattr(user, "graph_s", graph_s)
    monkeypatch.setattr(cuda_products, "COPIED_BYTES", 1000)
    monkeypatch.setattr(cuda_products, "HIDDEN", 256)
    monkeypatch.setattr(cuda_products, "row_reason", lambda device: None)
    monkeypatch.setattr(self_test, "ROWS", 32)
    monkeypatch.setattr(self_test, "COLUMNS", 256)
    arguments = ["--formats", "Q4_0", "BF16", "--tokens", "1", "--shapes", "16x256"]
    assert cuda_products.main(arguments) == 0
    report = capsys.readouterr().out
    assert "Q4_0  right" in report
    assert "BF16  right" in report
    assert "rows    right" in report
    assert "Q4_0  512 tokens: decoding 1000000.0 us" in report
    header, *lines = report.splitlines()[-3:]
    assert header.startswith("format  rows")
    assert [line.split()[:4] for line in lines] == [
        ["BF16", "16", "256", "1"],
        ["Q4_0", "16", "256", "1"],
    ]
    assert len(compiled) >= 4
    monkeypatch.setattr(cuda_products, "LARGEST_ERROR", 0.0)
    assert cuda_products.main(arguments) == 1
    assert "WRONG" in capsys.readouterr().out
    assert cuda_products.main([*arguments, "--limit-s", "-1"]) == 1
    assert "no time is left" in capsys.readouterr().out
