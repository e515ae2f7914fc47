"""`tests/gpu.py` and `tests/mps.py` as far as they go without a GPU: each of their lines runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gpu
import mps


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == mps.main() == 0
    said = capsys.readouterr().out
    assert said.count("nothing was run") == 2
    cure = "install a driver" if torch.version.cuda else "install a build of torch for your GPU"
    assert cure in said
    assert "would need" in said


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "a card")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (1 << 30, 8 << 30))


@pytest.mark.usefixtures("_gpu")
def test_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One part fails, one takes too long, and all others pass."""
    commands: list[list[str]] = []

    def run(command: Any, **options: Any) -> SimpleNamespace:
        commands.append(list(command))
        if "--concurrency" in command:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        assert options["env"]["PYTHONPATH"]
        return SimpleNamespace(stdout="a\nb", returncode=int(len(commands) == 1))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--folder", str(tmp_path)])
    assert gpu.main() == 1
    report = capsys.readouterr().out
    assert "cuda:1 a card, 8192 MiB" in report
    assert "no result after 300 s" in report
    assert report.count("FAILED") == 2
    assert f"{len(commands) - 2} of {len(commands)} parts passed" in report


def test_commands_name_what_exists(tmp_path: Path) -> None:
    parts = [*gpu.checks(), *gpu.speeds(tmp_path)]
    paths = [Path(word) for part in parts for word in part.command if word.endswith(".py")]
    assert len(paths) >= 6
    assert all(path.is_file() for path in paths)


def test_a_family_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where it is right; and with an error in the place of logits."""
    monkeypatch.setattr(mps, "DEVICE", torch.device("cpu"))
    assert mps.check("llama-default") is None
    monkeypatch.setattr("mrs.model.decoder.Decoder._logits", lambda decoder, x: x / 0)
    assert mps.check("llama-default")


@pytest.mark.usefixtures("_gpu")
def test_the_kernels_of_a_lent_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """All parts together end within nine minutes, whatever each of them does."""
    limits: list[float] = []

    def run(command: Any, **options: Any) -> SimpleNamespace:
        limits.append(options["timeout"])
        assert all(Path(word).exists() for word in command if str(word).endswith(".py"))
        return SimpleNamespace(stdout="a", returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--cuda", "--folder", str(tmp_path)])
    assert gpu.main() == 0
    assert sum(limits) <= 540
    assert "7 of 7 parts passed" in capsys.readouterr().out
