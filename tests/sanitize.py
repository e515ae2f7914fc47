"""Run the native library under gcc's sanitizers: addresses and undefined behaviour, then threads.

    python tests/sanitize.py [arguments of pytest]

First the tests of the kernels, of models and engines that use them, and of steps that a hostile
head has changed; steps with wrong numbers of every kind (`kernels/test_bounds.py`) are among them.
Then the programs of C in `kernels/`, whose callers compute at once, each with several threads. The
library is compiled anew in a temporary folder, for every path of this processor. Needs gcc with its
sanitizers, on Linux, and some minutes of a core for the compiler alone.
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
#: Tests that compute natively, without those that preload a library, fork, or need glibc's heap.
NATIVE = (
    "kernels",
    "quantization/test_encode_paths.py",
    "model/test_equal_bits.py",
    "model/test_moe.py",
    "engine/test_engine_batches.py",
    "engine/test_engine_prefixes.py",
    "engine/test_quantized_prefixes.py",
    "engine/test_layer_runs.py",
    "distributed/test_mutated_steps.py",
)
LEFT_OUT = "not test_each_one_fails and not forked and not triton and not test_memory"
REPORTS = ("-g", "-O1", "-fno-omit-frame-pointer")
#: Steps that each caller of sanitized_bounds.c tries.
STEPS = 1000


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        failed = check_addresses(Path(folder), arguments)
        return check_threads(Path(folder)) or failed


def check_addresses(folder: Path, arguments: Sequence[str]) -> int:
    """Address and undefined-behaviour sanitizers, under Python's tests."""
    checks = "-fsanitize=address,undefined"
    library = native.compile_library(
        folder / native.LIBRARY.name, checks, "-fno-sanitize-recover=all", *REPORTS
    )
    tests = arguments or [str(TESTS / name) for name in NATIVE]
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-s"]
    return subprocess.run(
        [*pytest, "-m", "not slow", "-k", LEFT_OUT, *tests],
        env=sanitized_environment(library),
        check=False,
    ).returncode


def sanitized_environment(library: Path) -> dict[str, str]:
    """In which every Python loads this library, by way of `sitecustomize.py`."""
    return {
        **os.environ,
        "PYTHONPATH": str(TESTS),
        # The first wants to find the other's exceptions when it starts.
        "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libstdc++.so.6')}",
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own are many
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "SANITIZED_MRS_LIBRARY": str(library),
    }


def check_threads(folder: Path) -> int:
    """The thread sanitizer, under programs of its own: it knows nothing of torch's threads."""
    library = native.compile_library(
        folder / f"threads_{native.LIBRARY.name}", "-fsanitize=thread", *REPORTS
    )
    linked = [library, f"-Wl,-rpath,{folder}"]
    sources = native.LIBRARY.parent
    bounded = [sources / "bounds.c", sources / "attention/attention.c"]
    bounded += (sources / "runtime").glob("*.c")
    products = run_threads(folder, "sanitized_threads", linked, native_paths())
    return run_threads(folder, "sanitized_bounds", bounded, [str(STEPS)]) or products


def run_threads(folder: Path, name: str, with_them: Sequence[object], words: Sequence[str]) -> int:
    """Compile a program of C with these files, and run it with these words."""
    flags = ["-std=gnu11", "-fsanitize=thread", "-g", "-O1", "-pthread", "-fopenmp-simd"]
    flags += [f"-I{native.LIBRARY.parent}"]
    source, program = TESTS / "kernels" / f"{name}.c", folder / name
    files = [str(each) for each in (source, *with_them)]
    subprocess.run(["gcc", *flags, *files, "-lm", "-o", program], check=True)
    # Its shadow memory has fixed places.
    return subprocess.run(
        ["setarch", "-R", program, *words],
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        check=False,
    ).returncode


def runtime(name: str) -> str:
    """Where gcc keeps a library that must be loaded first."""
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
