"""Run the kernels under gcc's sanitizers: addresses and undefined behaviour, then threads.

    python tests/sanitize.py [arguments of pytest]

The library is compiled anew in a temporary folder. Needs gcc with its sanitizers, on Linux.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mrs.kernels.cpu.library import native_paths
from mrs.kernels.cpu.native import compile as native

TESTS = Path(__file__).parent
#: Tests of kernels, without those that preload a library, fork, or need glibc's heap.
KERNELS = ("kernels", "quants/test_encode_paths.py", "engine/test_layer_runs.py")
LEFT_OUT = "not test_each_one_fails and not forked and not triton and not test_memory"
REPORTS = ("-g", "-O1", "-fno-omit-frame-pointer")


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        failed = check_addresses(Path(folder), arguments)
        return check_threads(Path(folder)) or failed


def check_addresses(folder: Path, arguments: Sequence[str]) -> int:
    """Address and undefined-behaviour sanitizers, under the tests of the kernels."""
    checks = "-fsanitize=address,undefined"
    library = native.compile_library(
        folder / native.LIBRARY.name, checks, "-fno-sanitize-recover=all", *REPORTS
    )
    tests = arguments or [TESTS / name for name in KERNELS]
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-s", "-p", "sanitized_library"]
    return subprocess.run(
        [*pytest, "-m", "not slow", "-k", LEFT_OUT, *tests],
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            # The first wants to find the other's exceptions when it starts.
            "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libstdc++.so.6')}",
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own are many
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "MRS_SANITIZED_LIBRARY": str(library),
        },
        check=False,
    ).returncode


def check_threads(folder: Path) -> int:
    """The thread sanitizer, under a program of its own: it knows nothing of torch's threads."""
    library = native.compile_library(
        folder / f"threads_{native.LIBRARY.name}", "-fsanitize=thread", *REPORTS
    )
    program, source = folder / "threads", TESTS / "kernels" / "sanitized_threads.c"
    include = native.LIBRARY.parent
    compiler = ["gcc", "-std=gnu11", "-fsanitize=thread", "-g", "-pthread", f"-I{include}"]
    linked = [library, f"-Wl,-rpath,{folder}"]
    subprocess.run([*compiler, source, *linked, "-o", program], check=True)
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    # Its shadow memory has fixed places.
    return subprocess.run(
        ["setarch", "-R", program, *native_paths()], env=environment, check=False
    ).returncode


def runtime(name: str) -> str:
    """Where gcc keeps a library that must be loaded first."""
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
