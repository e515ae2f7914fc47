"""Families with a field that no fast path knows are computed slowly, and right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_families import build_package

CHECKS = Path(__file__).with_name("made_up_paths.py")


def check(package: Path, words: str = "", **variables: str) -> None:
    """The checks of made-up families whose names have these `words`, with a package of theirs."""
    options = ["-q", "-n0", "-m", "", "-k", words]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(CHECKS)],
        env={**os.environ, "PYTHONPATH": str(package), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.full
def test_every_path_is_right_or_refuses_the_field_by_name(tmp_path: Path) -> None:
    build_package(tmp_path)
    check(tmp_path)
    for path in ("portable", "torch"):
        check(tmp_path, "TestFable and (reply or bf16 or quantized)", MRS_CPU_PATH=path)


@pytest.mark.full
def test_shards_that_know_the_field_are_right(tmp_path: Path) -> None:
    build_package(tmp_path, knows_shares=True)
    check(tmp_path, "shards", KNOWS_SHARES="1")
