"""`mrs doctor` and `mrs completions`: each check has a state and a cure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mrs.doctor import machine as doctor
from mrs.doctor.gpu import examine_gpus
from mrs.kernels.cuda import self_test as cuda_test
from mrs.kernels.triton import attention_check, decode_check, self_test
from mrs.quantization import cuda_kernels
from mrs.quantization.cuda_trial import CannotTry, Verdict
from mrs_cli.commands.completions import completion


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mrs.devices.bandwidth.measure_host_bandwidth", lambda: 2e10)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def test_every_check_that_is_not_well_has_a_cure(run_mrs) -> None:
    ran = run_mrs("doctor", "--json")
    checks = json.loads(ran.out)["checks"]
    assert ran.code == 0
    assert all(check["cure"] for check in checks if check["state"] != "ok")
    names = {check["name"] for check in checks}
    assert {"processor", "native library", "compiler", "memory", "hub", "disk"} <= names
    hub = next(check for check in checks if check["name"] == "hub")
    assert hub["state"] == "bad"
    assert "127.0.0.1" in hub["found"]


def test_a_line_for_each_check(run_mrs) -> None:
    ran = run_mrs("doctor")
    assert ran.out.count("\n") == len(list(doctor.examine()))
    assert "20.0 GB/s" in ran.out


def test_offline_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub = next(check for check in doctor.examine() if check.name == "hub")
    assert (hub.state, hub.found) == ("note", "offline by HF_HUB_OFFLINE")


def test_a_bad_variable_is_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "nonsense")
    hub = next(check for check in doctor.examine() if check.name == "hub")
    assert (hub.state, hub.found) == ("bad", "HF_ENDPOINT is not a web address")


def test_kernels_without_a_gpu(run_mrs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    (check,) = json.loads(run_mrs("doctor", "--gpu", "--json").out)["checks"]
    assert check["state"] == "note"
    assert "no kernel was run" in check["found"]
    assert check["cure"]


@pytest.mark.parametrize(
    ("error", "reason", "states"),
    [
        (1e-3, None, ["ok"] * 5),
        (0.5, None, ["ok", *["bad"] * 4]),
        (float("nan"), None, ["ok", *["bad"] * 4]),
        (1e-3, "Triton is not installed", ["bad"]),
    ],
)
def test_kernels_of_a_gpu(
    error: float, reason: str | None, states: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_card(monkeypatch, lambda *_, **options: Verdict(None), reason)
    monkeypatch.setattr(attention_check, "attention_error", lambda device, **options: error)
    monkeypatch.setattr(decode_check, "decode_error", lambda device, layout: error)
    monkeypatch.setattr(decode_check, "expert_error", lambda device, layout: error)
    checks = list(examine_gpus())
    assert [check.state for check in checks] == [*["ok"] * 8, *states]
    assert all(check.cure for check in checks if check.state != "ok")


def use_card(
    monkeypatch: pytest.MonkeyPatch,
    verdict: Callable[..., Verdict],
    reason: str | None = "no Triton",
) -> None:
    """Let there be one, on which trials of CUDA kernels have this verdict."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(self_test, "products_unavailable_reason", lambda device: reason)
    monkeypatch.setattr(cuda_test, "missing_reason", lambda device: None)
    monkeypatch.setattr(cuda_kernels, "verdict", verdict)


CUDA_LEFT_OUT = {
    "wrong": (Verdict("some reason"), "bad", "some reason"),
    "slower": (
        Verdict(None, (3e-6, 4e-6), (1e-6, 2e-6)),
        "note",
        "3.0 µs for 1 token (others 1.0)",
    ),
    "slower with many": (Verdict(None, (1e-6, 4e-6), (2e-6, 2e-6)), "ok", "right; 4096 x 4096"),
    "untried": (CannotTry("some reason"), "bad", "could not be tested: some reason"),
}


@pytest.mark.parametrize("case", CUDA_LEFT_OUT)
def test_cuda_kernels_of_a_format(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are tried again, and the others are not affected."""
    of_q6, state, said = CUDA_LEFT_OUT[case]

    def verdict(device: torch.device, kind: str, *, retries_failure: bool) -> Verdict:
        assert retries_failure
        if kind != "Q6_K":
            return Verdict(None)
        if isinstance(of_q6, CannotTry):
            raise of_q6
        return of_q6

    use_card(monkeypatch, verdict)
    checks = {check.name: check for check in examine_gpus()}
    found = checks["cuda:0 CUDA Q6_K"]
    assert (found.state, said in found.found) == (state, True)
    assert found.cure or state == "ok"
    assert checks["cuda:0 CUDA rows"].state == checks["cuda:0 CUDA Q4_K"].state == "ok"
    monkeypatch.setenv("MRS_GPU_PATH", "cuda")
    found = {check.name: check for check in examine_gpus()}["cuda:0 CUDA Q6_K"]
    assert found.state == ("bad" if state == "bad" else "ok")


def test_cuda_kernels_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    use_card(monkeypatch, lambda *_: Verdict(None))
    monkeypatch.setattr(cuda_test, "missing_reason", lambda device: "some reason")
    check = list(examine_gpus())[1]
    assert (check.state, check.found) == ("note", "other kernels are used: some reason")
    monkeypatch.setenv("MRS_GPU_PATH", "triton")
    check = list(examine_gpus())[1]
    assert (check.state, check.cure) == ("note", "unset MRS_GPU_PATH")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(run_mrs, shell: str) -> None:
    assert run_mrs("completions", shell).out == completion(shell)
