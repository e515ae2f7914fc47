"""The kernels of `core/mrs/kernels/cuda`, run by the CPU: see tests/kernels/emulated_gpu.h."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import torch

from mrs.kernels.cuda.cubins import Kernel, sources
from mrs.kernels.cuda.launcher import Limits
from mrs.kernels.workspace.fragments import COUNTERS

HEADER = Path(__file__).parents[1] / "kernels" / "emulated_gpu.h"
GXX = shutil.which("g++")
#: Compute capabilities, their architectures, and shared memory of a block and a multiprocessor.
LIMITS = {
    80: Limits("sm_80", 163 << 10, 164 << 10),
    86: Limits("sm_86", 99 << 10, 100 << 10),
    89: Limits("sm_89", 99 << 10, 100 << 10),
    90: Limits("sm_90a", 227 << 10, 228 << 10),
    100: Limits("sm_100a", 227 << 10, 228 << 10),
    120: Limits("sm_120a", 99 << 10, 100 << 10),
}
_TASKS = {
    "products": "Products",
    "decode": "Decoding",
    "rotate": "Rotation",
    "normalize": "Norm",
    "route": "Routing",
}
_ENTRY = """
#include "{name}.cu"
extern "C" int task_bytes() {{ return sizeof({task}); }}
extern "C" void launch(const void *task, int x, int y, int z, int threads, int shared_bytes,
                       int order, int early) {{
  gpu::run([&] {{ {name}(*(const {task} *)task); }}, {{x, y, z}}, threads, shared_bytes, order,
           early);
}}
"""


def program_of(kernel: Kernel, folder: Path, *flags: str) -> Path:
    """A shared library with a kernel; compiled once in a folder."""
    own = folder / f"{hash((kernel, flags)) & 0xFFFFFFFFFFFF:x}"
    library = own / "kernel.so"
    if library.exists():
        return library
    own.mkdir(parents=True)
    for name, text in sources().items():
        (own / name).write_bytes(HEADER.read_bytes() if name == "ptx.h" else text)
    entry = own / "entry.cpp"
    entry.write_text(_ENTRY.format(name=kernel.name, task=_TASKS[kernel.name]))
    command = [str(GXX), "-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
    command += [*flags, *kernel.options, "-o", str(library), str(entry)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return library


class EmulatedGpu:
    """A launcher that runs kernels at once, on tensors of the CPU.

    `order` and `early` are those of the header.
    """

    def __init__(
        self,
        folder: Path,
        capability: int = 90,
        *,
        order: int = 0,
        early: int = 0,
        flags: tuple[str, ...] = (),
    ) -> None:
        self.limits = LIMITS[capability]
        self.counters = torch.zeros(COUNTERS, dtype=torch.int32)
        self.order, self.early = order, early
        self.launched: list[tuple[Kernel, tuple[int, int, int]]] = []
        self._folder, self._flags = folder, flags

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        shared_bytes: int,
        task: ctypes.Structure,
    ) -> None:
        self.launched.append((kernel, grid))
        library = ctypes.CDLL(str(program_of(kernel, self._folder, *self._flags)))
        assert library.task_bytes() == ctypes.sizeof(task)
        library.launch(
            ctypes.byref(task), *grid, 256, shared_bytes, int(self.order), int(self.early)
        )
        assert not self.counters.any()
