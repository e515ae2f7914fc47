"""The Triton kernels compile for GPUs that are not there, to the instructions they are meant for.

`test_triton.py` runs this file in a process of its own, since it takes the place of Triton's
driver. Nothing is run.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.triton.decode_blocks import AttentionBlock, GpuWeight, HeadShape, MlpBlock, RmsNorm
from mrs.kernels.triton.expert_blocks import ExpertMatrices, GroupedExperts
from mrs.kernels.triton.paged_attention import TritonAttention
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.quantization.gguf.fields import PLANE_LAYOUTS
from support.triton_compiler import CAPABILITIES, compile_for, resources_of


@pytest.fixture(params=CAPABILITIES)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is compiled, instead of run, during a test."""
    return compile_for(request.param, monkeypatch)


def attend(
    head_dim: int,
    heads: int,
    kv_heads: int,
    value_dim: int | None,
    dtype: torch.dtype = torch.bfloat16,
    queries: torch.dtype = torch.bfloat16,
) -> None:
    """A decode step and a prompt of 20 tokens; the cache has the type `dtype`."""
    cpu = torch.device("cpu")
    dims = head_dim, value_dim or head_dim
    kv = PagedKV(
        kv_heads,
        *dims,
        block_tokens=64,
        dtype=dtype,
        device=cpu,
        values_in_keys=value_dim is not None,
    )
    kv.resize(2)
    starts, lengths = torch.tensor([[0, 1, 21], [9, 40, 0]], dtype=torch.int32)
    tables = torch.zeros(2, 1, dtype=torch.int32)
    batch = AttentionBatch(starts, lengths[:2], tables, torch.empty(0))
    q = torch.zeros(21, heads, head_dim, dtype=queries)
    TritonAttention().attend(q, kv, batch, AttentionOptions(0.1))


def multiply(name: str, tokens: int) -> None:
    matrix = PlaneMatrix(PLANE_LAYOUTS[name], 4096, 4096, torch.device("cpu"))
    matrix.matmul(torch.ones(tokens, 4096, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", PLANE_LAYOUTS)
def test_one_token(name: str, compiled: list[Any]) -> None:
    """Codes come in the widest loads, threads exchange nothing before the end, and a product and a
    sum are one instruction.
    """
    multiply(name, 1)
    (kernel,) = compiled
    assert "cubin" in kernel.asm
    ptx = kernel.asm["ptx"]
    wide = "v4.b32" if PLANE_LAYOUTS[name].code_low == 4 else "v2.b32"
    assert re.search(rf"ld\.global[\w.:]*\.{wide}", ptx)
    assert "fma.rn.f32" in ptx
    assert "bar.sync" not in ptx
    assert len(re.findall(r"shfl\.sync", ptx)) <= 12  # two sums of 32 threads
    assert ".local" not in ptx


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "INT8_64", "FP8_128"])
@pytest.mark.parametrize("tokens", [9, 64, 512])
def test_tiles(name: str, tokens: int, compiled: list[Any]) -> None:
    """Matrix units multiply, in registers but for four values and in shared memory all GPUs have.

    The smaller GPUs have less than Hopper.
    """
    multiply(name, tokens)
    (kernel,) = compiled
    assert re.search(r"(mma\.sync|wgmma\.mma_async)\S*\.f32\.f16\.f16", kernel.asm["ptx"])
    is_hopper = "wgmma" in kernel.asm["ptx"]
    found = resources_of(kernel)
    assert found.shared_bytes <= (227 if is_hopper else 99) << 10
    assert found.spilled_bytes <= 16


HEADS = pytest.mark.parametrize(
    ("head_dim", "heads", "kv_heads", "value_dim"),
    [(64, 32, 8, None), (128, 32, 8, None), (256, 16, 8, None), (576, 16, 1, 512)],
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@HEADS
def test_attention(
    head_dim: int,
    heads: int,
    kv_heads: int,
    value_dim: int | None,
    dtype: torch.dtype,
    compiled: list[Any],
) -> None:
    """Matrix units multiply, and what a program shares is small enough for all GPUs."""
    attend(head_dim, heads, kv_heads, value_dim, dtype)
    decode, prompt = compiled
    for kernel in (decode, prompt):
        assert re.search(r"(mma\.sync|wgmma\.mma_async|tcgen05\.mma)", kernel.asm["ptx"])
        assert kernel.metadata.shared <= 99 << 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
@HEADS
def test_attention_of_float32(
    head_dim: int,
    heads: int,
    kv_heads: int,
    value_dim: int | None,
    dtype: torch.dtype,
    compiled: list[Any],
) -> None:
    """Values of more bytes need no more shared memory than all GPUs have."""
    attend(head_dim, heads, kv_heads, value_dim, dtype, torch.float32)
    assert len(compiled) == 2
    assert all(kernel.metadata.shared <= 99 << 10 for kernel in compiled)


def decode_layer(
    name: str, tokens: int, *, has_norms: bool = False, cache: torch.dtype = torch.bfloat16
) -> None:
    """A layer of Llama 3.1 8B: its values in `name`, or all in bf16."""
    cpu = torch.device("cpu")

    def weight(rows: int, columns: int, name: str = name) -> GpuWeight:
        if name == "BF16":
            return GpuWeight.of(torch.zeros(rows, columns, dtype=torch.bfloat16))
        return GpuWeight.of(PlaneMatrix(PLANE_LAYOUTS[name], rows, columns, cpu))

    value_name = "Q6_K" if name == "Q4_K" else name
    qkv = weight(4096, 4096), weight(1024, 4096), weight(1024, 4096, value_name)
    norms = torch.ones(2, 128) if has_norms else None
    shape = HeadShape(32, 8, 128, interleaved=False, norms=norms)
    norm = RmsNorm(torch.ones(4096), 1e-5)
    attention = AttentionBlock(norm, qkv, weight(4096, 4096), shape, AttentionOptions(0.1))
    gate, up, down = weight(14336, 4096), weight(14336, 4096), weight(4096, 14336, value_name)
    kv = PagedKV(8, 128, 128, block_tokens=64, dtype=cache, device=cpu)
    kv.resize(16)
    rows = torch.arange(tokens + 1, dtype=torch.int32)
    tables = torch.zeros(tokens, 16, dtype=torch.int32)
    slots = torch.zeros(tokens, dtype=torch.int64)
    batch = AttentionBatch(rows, torch.full((tokens,), 900, dtype=torch.int32), tables, slots)
    x, angles = torch.zeros(tokens, 4096, dtype=torch.bfloat16), torch.zeros(tokens, 64)
    attention(x, (angles, angles), kv, batch)
    MlpBlock(norm, gate, up, down, "silu")(x)


@pytest.mark.parametrize("name", ["BF16", "Q4_K", "Q5_K", "Q8_0", "FP8_128"])
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_a_layer_of_a_decode_step(name: str, tokens: int, compiled: list[Any]) -> None:
    """Five launches, in registers but for four values, and in shared memory that all GPUs have.

    Of four tokens, Triton 3.9 leaves more in slow memory.
    """
    decode_layer(name, tokens)
    assert len(compiled) == 5
    for kernel in compiled:
        found = resources_of(kernel)
        assert found.spilled_bytes <= (16 if tokens < 4 else 256)
        assert found.shared_bytes <= 99 << 10


@pytest.mark.parametrize("cache", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_layer_with_head_norms(cache: torch.dtype, compiled: list[Any]) -> None:
    """Triton 3.9 leaves a little of the product of three matrices in slow memory."""
    decode_layer("Q8_0", 1, has_norms=True, cache=cache)
    assert len(compiled) == 6
    assert all(resources_of(kernel).spilled_bytes <= 96 for kernel in compiled)


def test_a_layer_with_a_cache_of_8_bits(compiled: list[Any]) -> None:
    decode_layer("Q4_K", 1, cache=torch.float8_e4m3fn)
    assert len(compiled) == 5
    assert all(resources_of(kernel).spilled_bytes <= 16 for kernel in compiled)


def experts(name: str) -> None:
    """Two of four experts, as wide as those of Qwen3 30B."""
    cpu = torch.device("cpu")

    def matrices(rows: int, columns: int) -> ExpertMatrices:
        made: list[PlaneMatrix | torch.Tensor] = []
        for _ in range(4):
            if name == "BF16":
                made.append(torch.zeros(rows, columns, dtype=torch.bfloat16))
            else:
                made.append(PlaneMatrix(PLANE_LAYOUTS[name], rows, columns, cpu))
        found = ExpertMatrices.of(made, [torch.zeros(rows)] * 4)
        assert found is not None
        return found

    gate, up, down = matrices(768, 2048), matrices(768, 2048), matrices(2048, 768)
    indices, weights = torch.tensor([[1, 3]]), torch.ones(1, 2)
    grouped = GroupedExperts(gate, up, down, "clamped_swiglu", 7.0)
    grouped(torch.zeros(1, 2048, dtype=torch.bfloat16), weights, indices)


@pytest.mark.parametrize("name", ["BF16", "Q4_K", "MXFP4"])
def test_chosen_experts(name: str, compiled: list[Any]) -> None:
    """Distances between experts leave loads of codes as wide as those of other products."""
    experts(name)
    assert len(compiled) == 2
    for kernel in compiled:
        assert resources_of(kernel).spilled_bytes == 0
        assert re.search(r"ld\.global[\w.:]*\.v4\.b32", kernel.asm["ptx"])
