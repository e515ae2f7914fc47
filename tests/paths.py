"""Run the tests of kernels, models and plans under every path that this processor can run.

    python tests/paths.py [arguments of pytest]

Prints a row of a table for each. Torch is kept to the instructions of the path, too. Where there is
AVX-512 with bf16 but no AMX, AMX is emulated.
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
ROOMS = ("kernels", "quantization", "model", "engine", "families", "vision", "plan")
#: With AMX emulated: without tests that start other processes, which do not emulate it.
EMULATED_ROOMS = ("kernels", "model", "plan/test_native_parts.py")
EMULATION = ("-p", "emulated_amx_machine", "-k", "not test_each_one_fails")
#: What processors of a path let torch use; those not named here, all that there is.
TORCH_UNITS = {
    "avx512_bf16": "AVX512_CORE_BF16",
    "avx512": "AVX512_CORE",
    "avx_vnni": "AVX2_VNNI",
    "avx2": "AVX2",
    "portable": "AVX2",
}


def run(path: str, arguments: list[str]) -> str:
    """What pytest says at its end."""
    environment = {**os.environ, PATH_VARIABLE: path, "PYTHONPATH": str(TESTS)}
    options, rooms = ((), ROOMS) if path in cpu_paths() else (EMULATION, EMULATED_ROOMS)
    tests = arguments or [TESTS / room for room in rooms]
    if path in TORCH_UNITS:
        environment[TORCH_VARIABLE] = TORCH_UNITS[path]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *options, *tests],
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
    paths = cpu_paths()
    if "avx512_bf16" in paths and "amx" not in paths:
        paths.append("amx")
    for path in paths:
        print(f"| {cpu_name()} | {path} | {run(path, sys.argv[1:])} |", flush=True)


if __name__ == "__main__":
    main()
