"""Runs the tests of the Triton kernels, each file in a process that has Triton to itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("Triton")


def run_tests(file_name: str, **environment: str) -> None:
    tests = Path(__file__).with_name(file_name)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, **environment},
        cwd=tests.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = r"^[1-9]\d* passed(, \d+ (warnings|deselected))* in"
    assert re.search(passed, done.stdout, re.MULTILINE), done.stdout


@pytest.mark.full  # minutes each, though the tests of `kernels/` run by pairs there, too
@pytest.mark.parametrize(
    "file_name",
    [f"triton{part}_in_interpreter.py" for part in ("", "_attention", "_decode", "_experts")],
)
def test_in_the_interpreter(file_name: str) -> None:
    run_tests(file_name, TRITON_INTERPRET="1")


@pytest.mark.slow
def test_for_gpus(tmp_path: Path) -> None:
    """Compiling is not running: these kernels are right on a GPU only once they ran on one."""
    run_tests("triton_for_gpus.py", TRITON_CACHE_DIR=str(tmp_path))
