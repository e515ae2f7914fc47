"""How fast weights are quantized, in millions a second, beside llama.cpp's quantizer.

    python tests/bench/quantizing_speed.py [--device cpu] [--threads 2] [--formats Q4_K …]

bf16 weights on a device; llama.cpp takes its float32 ones on one thread and is left out without
llama-cpp-python. Rates are per second of wall time, and on a CPU per second of processor time,
which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from mrs.devices.cpu_path import PATH_VARIABLE
from mrs.formats import FORMATS
from mrs.kernels.cpu.library import native_library, native_paths
from mrs.quantization.gguf import encode

NAMES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
ROWS, COLUMNS, REPEATS = 2048, 4096, 3


def rates(work: Callable[[], object], device: torch.device) -> str:
    """Millions of weights a second of wall and of processor time, the best of some runs."""
    best_wall = best_cpu = float("inf")
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best_cpu = min(best_cpu, time.process_time() - cpu)
        best_wall = min(best_wall, time.perf_counter() - wall)
    millions = ROWS * COLUMNS / 1e6
    per_cpu = f"{millions / best_cpu:8.0f}" if device.type == "cpu" else ""
    return f"{millions / best_wall:8.0f}{per_cpu:>8}"


def llama_cpp_quantizer() -> Callable[[np.ndarray, str], np.ndarray] | None:
    sys.path.append(str(Path(__file__).parents[1] / "quantization"))
    from llama_cpp_quantizer import open_quantizer

    try:
        return open_quantizer()
    except ImportError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--formats", nargs="*", default=NAMES)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    weights = torch.randn(ROWS, COLUMNS).mul_(0.02).to(arguments.device, torch.bfloat16)
    theirs, floats = llama_cpp_quantizer(), weights.float().cpu().numpy()
    paths = ["torch", *(native_paths() if arguments.device.type == "cpu" else [])]
    print(f"{arguments.threads} threads; wall and processor rates in millions of weights a second")
    print(
        f"{'':6}"
        + "".join(f"{path:>16}" for path in paths)
        + (f"{'llama.cpp (1)':>16}" if theirs else "")
    )
    for name in arguments.formats:
        line = f"{name:6}"
        for path in paths:
            os.environ[PATH_VARIABLE] = path
            native_library.cache_clear()
            line += rates(lambda name=name: encode(weights, FORMATS[name]), arguments.device)
        if theirs is not None:
            line += rates(lambda name=name: theirs(floats, name), torch.device("cpu"))
        print(line, flush=True)


if __name__ == "__main__":
    main()
