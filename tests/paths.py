"""Run the tests of kernels, models and plans under every path that this processor can run.

    python tests/paths.py [arguments of pytest]

Prints a row of a table for each. Torch is kept to the instructions of the path, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from mrs.devices.cpu_path import PATH_VARIABLE, TORCH_VARIABLE, cpu_paths
from mrs.devices.processor import cpu_name

TESTS = Path(__file__).parent
ROOMS = ("kernels", "quants", "model", "engine", "families", "vision", "plan")
#: What processors of a path let torch use; those not named here, all that there is.
TORCH_UNITS = {
    "avx512_bf16": "AVX512_CORE_BF16",
    "avx512": "AVX512_CORE",
    "avx2": "AVX2",
    "portable": "AVX2",
}


def run(path: str, arguments: list[str]) -> str:
    """What pytest says at its end."""
    environment = {**os.environ, PATH_VARIABLE: path}
    if path in TORCH_UNITS:
        environment[TORCH_VARIABLE] = TORCH_UNITS[path]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(arguments or [TESTS / room for room in ROOMS])],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout)
    counts = re.findall(r"\d+ (?:passed|failed|error|skipped)\w*", done.stdout.splitlines()[-1])
    return ", ".join(counts) or f"exit code {done.returncode}"


def main() -> None:
    print("| processor | path | tests |\n| --- | --- | --- |")
    for path in cpu_paths():
        print(f"| {cpu_name()} | {path} | {run(path, sys.argv[1:])} |", flush=True)


if __name__ == "__main__":
    main()
