"""Steps with wrong numbers of every kind, under gcc's sanitizers: none reads or writes outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mrs.kernels.cpu.native import compile as native

SOURCES = native.LIBRARY.parent
GCC = shutil.which("gcc")
#: Steps that each of three threads tries; every second one has a wrong number.
STEPS = 400


def compiled(folder: Path, *checks: str) -> Path:
    """The program of sanitized_bounds.c, with the C sources that it tries."""
    program = folder / "sanitized_bounds"
    sources = [Path(__file__).with_name("sanitized_bounds.c"), SOURCES / "bounds.c"]
    sources += [SOURCES / "attention/attention.c", *(SOURCES / "runtime").glob("*.c")]
    flags = [f"-I{SOURCES}", "-std=gnu11", "-pthread", "-fopenmp-simd", "-g", *checks]
    subprocess.run([str(GCC), *flags, *sources, "-lm", "-o", program], check=True)
    return program


def has_sanitizers() -> bool:
    if sys.platform != "linux" or GCC is None:
        return False
    found = subprocess.run(
        [GCC, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    return Path(found.stdout.strip()).is_absolute()


@pytest.mark.full  # core refuses the same numbers: test_bounds.py
@pytest.mark.skipif(not has_sanitizers(), reason="gcc's sanitizers are not installed")
def test_no_number_of_a_step_leads_outside(tmp_path: Path) -> None:
    program = compiled(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    done = subprocess.run(
        [program, str(STEPS)],
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},  # they need ptrace
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    refused = [int(number) for number in done.stdout.split()]
    assert len(refused) == 6
    assert all(number > STEPS / 8 for number in refused), refused
