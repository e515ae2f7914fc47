"""The Triton kernels compile for GPUs that are not there, to the instructions they are meant for.

`test_triton.py` runs this file in a process of its own, since it takes the place of Triton's
driver. Nothing is run.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.quants.fields import PLANE_LAYOUTS


class Target:
    """What the compiler asks a driver for."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture(params=[80, 90])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is compiled, instead of run, during a test."""
    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernels.append(run(kernel, *args, grid=grid, warmup=True, **options))

    driver.set_active(Target(request.param))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    return kernels


def multiply(name: str, tokens: int) -> None:
    matrix = PlaneMatrix(PLANE_LAYOUTS[name], 4096, 4096, torch.device("cpu"))
    matrix.matmul(torch.ones(tokens, 4096, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", PLANE_LAYOUTS)
def test_one_token(name: str, compiled: list[Any]) -> None:
    """Codes come in the widest loads, and threads exchange nothing before the end."""
    multiply(name, 1)
    (kernel,) = compiled
    assert "cubin" in kernel.asm
    ptx = kernel.asm["ptx"]
    wide = "v4.b32" if PLANE_LAYOUTS[name].code_low == 4 else "v2.b32"
    assert re.search(rf"ld\.global[\w.:]*\.{wide}", ptx)
    assert "bar.sync" not in ptx
    assert len(re.findall(r"shfl\.sync", ptx)) <= 12  # two sums of 32 threads
    assert ".local" not in ptx


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("tokens", [9, 64, 512])
def test_tiles(name: str, tokens: int, compiled: list[Any]) -> None:
    """Matrix units multiply, and what a program shares fits into the smaller GPUs."""
    multiply(name, tokens)
    (kernel,) = compiled
    assert re.search(r"(mma\.sync|wgmma\.mma_async)\S*\.f32\.f16\.f16", kernel.asm["ptx"])
    is_hopper = "wgmma" in kernel.asm["ptx"]
    assert kernel.metadata.shared <= (227 if is_hopper else 99) << 10
