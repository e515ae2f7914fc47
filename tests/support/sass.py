"""What a compiled CUDA kernel needs, and the instructions of its main loop."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mrs.kernels.cuda.cubins import Kernel, compile_kernel
from mrs.kernels.cuda.nvrtc import nvrtc


class Compiled(NamedTuple):
    """A kernel for one architecture; spills are bytes of slow local memory."""

    instructions: list[str]
    loops: list[tuple[int, int]]
    registers: int
    spilled_bytes: int
    static_shared_bytes: int

    def main_loop(self) -> list[str]:
        """The smallest loop with the most products by the matrix units."""
        bodies = [self.instructions[start : end + 1] for start, end in self.loops]
        return max(bodies, key=lambda body: (sum("MMA" in each for each in body), -len(body)))


def compiled(kernel: Kernel, architecture: str) -> Compiled:
    compiler = nvrtc()
    assert compiler is not None
    cubin, log = compile_kernel(kernel, architecture, compiler, "--ptxas-options=-v")
    assert "warning" not in log, log
    numbers = {
        what: sum(map(int, re.findall(rf"(\d+) {what}", log)))
        for what in ("bytes stack frame", "bytes spill stores", "bytes spill loads", "bytes smem")
    }
    registers = re.search(r"Used (\d+) registers", log)
    assert registers is not None, log
    instructions, loops = _disassembled(cubin)
    spilled = sum(numbers[what] for what in numbers if what != "bytes smem")
    return Compiled(instructions, loops, int(registers[1]), spilled, numbers["bytes smem"])


@cache
def disassembler() -> str | None:
    """NVIDIA's `nvdisasm`, of the package nvidia-cuda-nvdisasm or of an installed toolkit."""
    spec = find_spec("nvidia")
    roots: Sequence[str] = list(spec.submodule_search_locations or ()) if spec else ()
    found = [path for root in roots for path in sorted(Path(root).glob("*/bin/nvdisasm"))]
    return str(found[-1]) if found else shutil.which("nvdisasm")


def _disassembled(cubin: bytes) -> tuple[list[str], list[tuple[int, int]]]:
    """Instructions, and the first and last of each loop: where a branch goes back."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = (str(disassembler()), "-c", file.name)
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        if found := re.search(r"/\*[0-9a-f]{4,}\*/\s+([^;]+);", line):
            instructions.append(found[1].strip())
    branches = ((n, re.search(r"BRA.*?(\.L_\w+)", each)) for n, each in enumerate(instructions))
    back = [(labels[found[1]], n) for n, found in branches if found and found[1] in labels]
    return instructions, [(start, end) for start, end in back if start <= end]
