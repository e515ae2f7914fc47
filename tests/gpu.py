"""Everything that only a machine with an NVIDIA GPU can show, as a report to paste.

    python tests/gpu.py [--folder FOLDER] [--quick | --cuda]

Runs the kernels against float64, three families against transformers and with CUDA graphs, splits
over devices, layers shared by two of them, what plans assume and the plan against the device's own
counters, and speeds: in a few minutes, each part in a process of its own. FOLDER gets a random
Llama of 1.1 billion parameters.
`--quick` leaves out speeds, and `--cuda` all but the kernels in CUDA C++ and what they change: less
than nine minutes, for a machine that is lent for a few. `python -m pytest -m needs` checks every
family. Exits with 1 if a part failed, and with 0 on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from mrs.devices.variables import GPU_PATH_VARIABLE
from mrs.doctor.gpu import examine_gpus

TESTS = Path(__file__).parent
ROOT = TESTS.parent
QUESTION = "What is device mapping?"
#: One of each kind of layout: compiling the kernels of all formats takes ten minutes.
FORMATS = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "INT4_32", "FP8_128")
FAMILIES = "llama-default or gemma2-default or deepseek_v2-default"


class Part(NamedTuple):
    """A part of the report: a command, and how many of its last lines are shown."""

    name: str
    command: Sequence[str]
    lines: int = 40
    limit_s: int = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("random-llama"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("This machine has no CUDA device that torch can use: nothing was run.")
        print(
            *(f"{check.name}: {check.found}; {check.cure}." for check in examine_gpus()), sep="\n"
        )
        return 0
    print(machine(), flush=True)
    if arguments.cuda:
        parts = cuda_kernels(arguments.folder)
    else:
        parts = [*checks(), *([] if arguments.quick else speeds(arguments.folder))]
    failed = [part.name for part in parts if not is_done(part)]
    print(f"\n{len(parts) - len(failed)} of {len(parts)} parts passed", *failed, sep="\n- ")
    return 1 if failed else 0


def machine() -> str:
    names = (
        f"cuda:{n} {torch.cuda.get_device_name(n)}, {torch.cuda.mem_get_info(n)[1] >> 20} MiB"
        for n in range(torch.cuda.device_count())
    )
    return "\n".join((f"torch {torch.__version__}, CUDA {torch.version.cuda}", *names))


def checks() -> list[Part]:
    python = sys.executable
    pytest = (python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "needs")
    families = str(TESTS / "families" / "test_families_on_gpu.py")
    splits = str(TESTS / "families" / "test_parity.py")
    mrs = (python, "-m", "mrs_cli")
    products = (python, str(TESTS / "bench" / "cuda_kernels.py"))
    shared = (*mrs, "--tensor-parallel-size", "2", "-P", QUESTION, "plain", "-m", "demo")
    of_several = [Part("layers shared by two GPUs", shared, 15)]
    return [
        Part("kernels", (*mrs, "doctor", "--gpu")),
        Part("decode step, estimated", (python, str(TESTS / "bench" / "decode_estimate.py"))),
        Part("products", (*products, "--formats", *FORMATS, "--tokens", "1", "512")),
        Part("products in CUDA C++", (python, str(TESTS / "bench" / "cuda_products.py")), 100),
        Part("attention", (python, str(TESTS / "bench" / "cuda_attention.py"))),
        Part("families", (*pytest, families, "-k", FAMILIES), 15),
        Part("split over CPU and GPU", (*pytest, splits, "-k", f"cuda and ({FAMILIES})"), 15),
        *(of_several if torch.cuda.device_count() > 1 else ()),
        Part("memory that plans assume", (python, str(TESTS / "bench" / "cuda_memory.py"))),
        Part("plan and measurement", (*mrs, "plan", "-m", "demo"), 60),
        Part("plan and measurement, quantized", (*mrs, "plan", "--isq", "q4k", "-m", "demo"), 60),
    ]


def cuda_kernels(folder: Path) -> list[Part]:
    """The speeds are last: a machine that is taken away has said before what is right."""
    python = sys.executable
    pytest = (python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "needs")
    bench = (python, "-m", "mrs_cli", "bench", "-p", "512", "-g", "64")
    model, families = str(folder), str(TESTS / "families" / "test_families_on_gpu.py")
    graphs = str(TESTS / "kernels" / "test_cuda_on_gpu.py")
    products = str(TESTS / "bench" / "cuda_products.py")
    make = str(TESTS / "bench" / "random_llama.py")
    cuda, triton = (("env", f"{GPU_PATH_VARIABLE}={path}", *bench) for path in ("cuda", "triton"))
    few = ("--tokens", "1", "8", "64", "--shapes", "4096x4096", "14336x4096", "--limit-s", "120")
    q4k = ("--isq", "q4k", "plain", "-m", model)
    return [
        Part("kernels in graphs", (*pytest, graphs), 15, 90),
        Part("families", (*pytest, families, "-k", FAMILIES), 15, 100),
        Part("kernels alone", (python, products, *few), 60, 160),
        Part("a model to measure", (python, make, model), 3, 30),
        Part("speed, Q4_K", (*cuda, *q4k), 15, 60),
        Part("speed, Q4_K, 16 sequences", (*cuda, "--concurrency", "16", *q4k), 15, 60),
        Part("speed, Q4_K, Triton's kernels", (*triton, *q4k), 15, 40),
    ]


def speeds(folder: Path) -> list[Part]:
    python = sys.executable
    bench = (python, "-m", "mrs_cli", "bench", "-p", "512", "-g", "64")
    no_graphs = ("env", "MRS_CUDA_GRAPHS=off", *bench)
    peers = str(TESTS / "bench" / "gpu_peers.py")
    make = str(TESTS / "bench" / "random_llama.py")
    model = str(folder)
    return [
        Part("a model to measure", (python, make, model), 3),
        Part("speed, bf16", (*bench, "plain", "-m", model), 15),
        Part("speed, bf16, without CUDA graphs", (*no_graphs, "plain", "-m", model), 15),
        Part(
            "speed, bf16, 16 sequences", (*bench, "--concurrency", "16", "plain", "-m", model), 15
        ),
        Part("speed, Q4_K", (*bench, "--isq", "q4k", "plain", "-m", model), 15),
        Part("speed, Q8_0", (*bench, "--isq", "q8_0", "plain", "-m", model), 15),
        Part("speed, FP8", (*bench, "--isq", "fp8", "plain", "-m", model), 15),
        Part("speed of other engines", (python, peers, model), 15),
    ]


def is_done(part: Part) -> bool:
    """Run a part, print the end of its output, and return whether it succeeded."""
    start_s = time.perf_counter()
    try:
        done = subprocess.run(
            part.command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=part.limit_s,
            check=False,
        )
        output, has_passed = done.stdout, done.returncode == 0
    except subprocess.TimeoutExpired:
        output, has_passed = f"no result after {part.limit_s} s", False
    state = "passed" if has_passed else "FAILED"
    print(f"\n## {part.name}: {state} in {time.perf_counter() - start_s:.0f} s\n")
    print("\n".join(output.splitlines()[-part.lines :]), flush=True)
    return has_passed


if __name__ == "__main__":
    sys.exit(main())
