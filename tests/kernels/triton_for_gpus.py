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

from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.triton.paged_attention import TritonAttention
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.quants.fields import PLANE_LAYOUTS


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


@pytest.fixture(params=[80, 89, 90, 120])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is compiled, instead of run, during a test."""
    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernels.append(run(kernel, *args, grid=grid, warmup=True, **options))

    driver.set_active(Target(request.param))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    return kernels


def attend(head_dim: int, heads: int, kv_heads: int, value_dim: int | None) -> None:
    """A decode step and a prompt of 20 tokens."""
    cpu = torch.device("cpu")
    dims = head_dim, value_dim or head_dim
    kv = PagedKV(
        kv_heads,
        *dims,
        block_tokens=64,
        dtype=torch.bfloat16,
        device=cpu,
        values_in_keys=value_dim is not None,
    )
    kv.resize(2)
    starts, lengths = torch.tensor([[0, 1, 21], [9, 40, 0]], dtype=torch.int32)
    tables = torch.zeros(2, 1, dtype=torch.int32)
    batch = AttentionBatch(starts, lengths[:2], tables, torch.empty(0))
    q = torch.zeros(21, heads, head_dim, dtype=torch.bfloat16)
    TritonAttention().attend(q, kv, batch, scale=0.1)


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


@pytest.mark.parametrize(
    ("head_dim", "heads", "kv_heads", "value_dim"),
    [(64, 32, 8, None), (128, 32, 8, None), (256, 16, 8, None), (576, 16, 1, 512)],
)
def test_attention(
    head_dim: int, heads: int, kv_heads: int, value_dim: int | None, compiled: list[Any]
) -> None:
    """Matrix units multiply, and what a program shares is small enough for all GPUs."""
    attend(head_dim, heads, kv_heads, value_dim)
    for kernel in (compiled[0], compiled[2]):  # decode and prompt; a sum of splits between them
        assert re.search(r"(mma\.sync|wgmma\.mma_async|tcgen05\.mma)", kernel.asm["ptx"])
        assert kernel.metadata.shared <= 99 << 10
