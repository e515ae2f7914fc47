"""Triton's compiler for GPUs that are not there: kernels are compiled where they would be run."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

#: Compute capabilities: A100, L40S, H100 and H200, RTX 50.
CAPABILITIES = (80, 89, 90, 120)


class Target:
    """What the compiler asks a driver for."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        """Another device for each target: Triton keeps what it compiled for a device."""
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_for(capability: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fills with what is compiled, instead of run, from now on."""
    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernels.append(run(kernel, *args, grid=grid, warmup=True, **options))

    driver.set_active(Target(capability))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    return kernels


class Resources(NamedTuple):
    """What a thread and a program of a kernel need; `spilled_bytes` are in slow local memory."""

    registers: int
    shared_bytes: int
    spilled_bytes: int


def resources_of(kernel: Any) -> Resources:
    """What NVIDIA's own tool reads in the compiled code."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = (str(tool), "--dump-resource-usage", file.name)
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    assert found is not None, text
    registers, stack_bytes, _, local_bytes = map(int, found.groups())
    return Resources(registers, kernel.metadata.shared, stack_bytes + local_bytes)
