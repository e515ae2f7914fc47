"""Every allocation of the native library may fail: an error, no crash, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mrs.devices.cpu_path import PATH_VARIABLE
from mrs.kernels.cpu.library import native_paths

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("preloaded") / "failing_allocations.so"
    source = HERE / "failing_allocations.c"
    subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", library], check=True)
    return library


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux" or not COMPILER, reason="nothing can be preloaded")
@pytest.mark.parametrize("path", native_paths()[:1])
def test_each_one_fails(path: str, preloaded: Path) -> None:
    done = subprocess.run(
        [sys.executable, HERE / "allocation_failures.py"],
        env={**os.environ, "LD_PRELOAD": str(preloaded), PATH_VARIABLE: path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout)
    assert len(counts) > 3
    assert all(counts.values()), counts
