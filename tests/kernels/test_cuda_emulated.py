"""The CUDA kernels' own text, run by the CPU: right, and with the same bits for any tokens.

Compiled by g++ with `emulated_gpu.h` in the place of the GPU's instructions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from packed_blocks import random_blocks, reference_values, same_bytes
from test_sanitized_bounds import has_sanitizers
from torch import Tensor

from mrs.formats import FORMATS
from mrs.kernels.cuda.fragment_matrix import FragmentMatrix
from mrs.kernels.cuda.fragments import FRAGMENT_FORMATS
from mrs.kernels.cuda.products import (
    MOST_TOKENS,
    Prepared,
    multiply,
    parts_of,
    prepare,
)
from mrs.kernels.norms import rms_norm
from mrs.quantization.gguf.fields import PLANE_LAYOUTS, split_blocks
from support.emulated_gpu import GXX, EmulatedGpu

pytestmark = pytest.mark.skipif(
    GXX is None or sys.platform != "linux", reason="needs g++ and the contexts of Linux"
)
FORMATS_OF_KERNELS = (*FRAGMENT_FORMATS, "BF16")
#: Of each way to read weights the one with the most planes.
SANITIZED = ("Q5_K", "Q6_K", "Q8_0", "BF16")
#: What is left of float32 sums, float16 activations among them being exact.
LARGEST_ERROR = 1e-6
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels are compiled."""
    return tmp_path_factory.mktemp("emulated")


def matrix_of(name: str, blocks: Tensor) -> tuple[FragmentMatrix | Tensor, Tensor]:
    """A matrix, and its weights float64 (rows, columns)."""
    values = reference_values(name, blocks).double()
    if name == "BF16":
        return blocks.view(torch.bfloat16), values
    kind = FORMATS[name]
    columns = blocks.shape[1] // kind.block_bytes * kind.block_elements
    matrix = FragmentMatrix(name, PLANE_LAYOUTS[name], len(blocks), columns, CPU)
    matrix.fill(split_blocks(blocks, kind))
    return matrix, values


def tokens_of(count: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, columns, generator=generator).to(dtype)


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.full  # core multiplies several matrices in one launch
@pytest.mark.parametrize(
    ("name", "columns"),
    [
        *((name, 768) for name in FORMATS_OF_KERNELS),
        *((name, columns) for name in ("Q8_0", "Q4_0") for columns in (32, 96, 1184)),
        *(("BF16", columns) for columns in (8, 120, 1160)),
    ],
)
def test_products(name: str, columns: int, folder: Path) -> None:
    """Of odd sizes: a last group of 48 rows, and columns that are no whole tiles."""
    matrix, values = matrix_of(name, random_blocks(name, 176, columns))
    x = tokens_of(3, columns)
    gpu = EmulatedGpu(folder)
    found = multiply(prepare(x, gpu, is_bf16=name == "BF16"), [matrix], gpu, torch.float32)
    assert error(found, x.double() @ values.T) < LARGEST_ERROR


@pytest.mark.full
@pytest.mark.parametrize("name", FORMATS_OF_KERNELS)
def test_tokens_have_the_same_bits_in_any_company(name: str, folder: Path) -> None:
    """In 1 to 64 tokens, of every kernel, on GPUs of every size, whatever thread comes first."""
    matrix, values = matrix_of(name, random_blocks(name, 48, 768))
    x = tokens_of(MOST_TOKENS, 768)
    wanted = x.double() @ values.T
    known: Tensor | None = None
    launched = set()
    for capability, order, early in ((90, 0, 0), (90, 1, 1), (89, 1, 0), (80, 0, 1)):
        gpu = EmulatedGpu(folder, capability, order=order, early=early)
        for count in (64, 1, 7, 9, 33) if capability == 90 else (64, 5):
            part = x[-count:]
            prepared = prepare(part, gpu, is_bf16=name == "BF16")
            found = multiply(prepared, [matrix], gpu, torch.float32)
            if known is None:
                known = found
                assert error(found, wanted) < LARGEST_ERROR
            assert torch.equal(found, known[-count:]), (capability, count)
        launched |= {kernel for kernel, _ in gpu.launched}
    assert len([kernel for kernel in launched if kernel.name == "products"]) >= 4


def test_several_matrices_in_one_launch(folder: Path) -> None:
    """Of two formats, as q, k and v of Q4_K_M files, with biases and a residual."""
    made = [
        matrix_of(name, random_blocks(name, rows, 512, rows))
        for name, rows in (("Q4_K", 192), ("Q4_K", 16), ("Q6_K", 144))
    ]
    x = tokens_of(2, 512)
    bias, added = torch.randn(352), tokens_of(2, 352)
    gpu = EmulatedGpu(folder)
    matrices = [matrix for matrix, _ in made]
    found = multiply(prepare(x, gpu), matrices, gpu, torch.bfloat16, bias=bias, added=added)
    wanted = x.double() @ torch.cat([values for _, values in made]).T + bias + added
    assert found.dtype == torch.bfloat16
    assert error(found, wanted) < 3e-3
    (_, grid) = gpu.launched[-1]
    assert grid == (5, 2, 1)
    alone = multiply(prepare(x[1:], gpu), matrices, gpu, torch.bfloat16, bias=bias, added=added[1:])
    assert torch.equal(alone, found[1:])


def values_of(prepared: Prepared) -> Tensor:
    """The tokens (N, columns of whole tiles) that fragments stand for, float64."""
    if prepared.is_bf16:
        halves = prepared.values.view(torch.bfloat16).transpose(0, 1)
        return halves.reshape(prepared.tokens, -1).double()
    j, t = torch.meshgrid(torch.arange(8), torch.arange(4), indexing="ij")
    place = j * 4 + ((t ^ j ^ (j >> 2)) & 3)  # of four columns
    units = prepared.values.view(torch.float16).view(-1, 2, prepared.tokens, 32, 4)
    units = units[:, :, :, place.flatten()].view(-1, 2, prepared.tokens, 8, 4, 4)
    columns = units.permute(2, 0, 4, 1, 3, 5).reshape(prepared.tokens, -1)
    return columns.double() * prepared.factors.double()[:, None]


@pytest.mark.few(2)
@pytest.mark.parametrize("is_bf16", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("before", ["nothing", "norm", "gate"])
def test_what_is_computed_of_tokens(
    before: str, dtype: torch.dtype, is_bf16: bool, folder: Path
) -> None:
    columns = 1184
    x = tokens_of(3, columns * (2 if before == "gate" else 1), dtype)
    x[1] *= 300
    x[2] = 0
    norm = torch.rand(columns) + 0.5 if before == "norm" else None
    wanted = x.double()
    if before == "gate":
        gate, up = wanted.split(columns, 1)
        wanted = torch.nn.functional.silu(gate) * up
    if norm is not None:
        wanted = rms_norm(x.float(), norm, 1e-5).double()
    gpu = EmulatedGpu(folder)
    prepared = prepare(x, gpu, norm=norm, eps=1e-5, is_gated=before == "gate", is_bf16=is_bf16)
    found = values_of(prepared)
    assert not found[:, columns:].any()
    rounding = 2**-8 if is_bf16 else 2**-11
    least = 2**-32 * wanted.abs().amax(1, keepdim=True)  # half of what float16 tells apart near 0
    assert ((found[:, :columns] - wanted).abs() <= rounding * wanted.abs() + least).all()
    if not is_bf16:
        runs = found.unflatten(1, (-1, 4, 4, 16)).sum(-1)
        sums = prepared.sums.view(torch.float16).view(-1, 3, 4, 2, 4).double().sum(3)
        sums = sums.transpose(0, 1) * prepared.factors.double()[:, None, None, None]
        assert ((sums - runs).abs() <= 2**-20 * runs.abs() + 1e-9).all()


@pytest.mark.full
@pytest.mark.parametrize("name", FRAGMENT_FORMATS)
def test_extreme_weights_and_tokens(name: str, folder: Path) -> None:
    """Every byte 0, 0x7f, 0x80 and 0xff; tokens near the largest and the smallest bf16."""
    gpu = EmulatedGpu(folder)
    for codes in (0x00, 0x7F, 0x80, 0xFF):
        matrix, values = matrix_of(name, same_bytes(name, 16, 256, codes, 0x03FF))
        for scale in (1e30, 1.0, 1e-30):
            x = tokens_of(2, 256, torch.float32).abs() * scale
            x = x.bfloat16()
            found = multiply(prepare(x, gpu), [matrix], gpu, torch.float32)
            wanted = x.double() @ values.T
            largest = float((x.double().abs() @ values.abs().T).max())
            assert float((found.double() - wanted).abs().max()) <= 1e-6 * largest + 1e-42


@pytest.mark.full
@pytest.mark.skipif(not has_sanitizers(), reason="gcc's sanitizers are not installed")
def test_no_thread_leaves_its_memory(tmp_path: Path) -> None:
    """Under the sanitizers, which also end at what C++ leaves undefined."""
    library = subprocess.run(
        [str(shutil.which("gcc")), "-print-file-name=libasan.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env={
            **os.environ,
            "LD_PRELOAD": library,
            # Leaks need ptrace; Python has its own allocator; fibers have stacks of their own.
            "ASAN_OPTIONS": "detect_leaks=0,detect_stack_use_after_return=0",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == [*SANITIZED]


def under_sanitizers(name: str, folder: Path) -> None:
    """Products of a format; all that kernels read and write is the allocator's."""
    flags = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    gpu = EmulatedGpu(folder, flags=flags)
    columns = 136 if name == "BF16" else 3 * FRAGMENT_FORMATS[name].block
    matrix, values = matrix_of(name, random_blocks(name, 144, columns))
    x = tokens_of(9, columns)
    found = multiply(prepare(x, gpu, is_bf16=name == "BF16"), [matrix], gpu, torch.float32)
    assert error(found, x.double() @ values.T) < LARGEST_ERROR
    print(name)


def test_parts_depend_on_the_shape_alone() -> None:
    """A launch has no more than two blocks for each multiprocessor of an H100, if not one each."""
    for groups in (1, 8, 32, 48, 112, 224, 1002):
        for columns in (32, 576, 4096, 14336):
            parts = parts_of(groups, columns)
            assert 1 <= parts <= -(-columns // 256)
            assert parts == 1 or groups * parts <= 264


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    gpu = EmulatedGpu(folder)
    matrix, _ = matrix_of("Q8_0", random_blocks("Q8_0", 16, 64))
    dense, _ = matrix_of("BF16", random_blocks("BF16", 16, 64))
    x = prepare(tokens_of(1, 64), gpu)
    assert multiply(prepare(tokens_of(0, 64), gpu), [matrix], gpu, torch.float32).shape == (0, 16)
    with pytest.raises(ValueError, match="4 matrices"):
        multiply(x, [matrix] * 4, gpu, torch.float32)
    with pytest.raises(ValueError, match="BF16"):
        multiply(x, [dense], gpu, torch.float32)
    with pytest.raises(ValueError, match="128 columns"):
        multiply(prepare(tokens_of(1, 128), gpu), [matrix], gpu, torch.float32)
    with pytest.raises(ValueError, match="65 tokens"):
        multiply(prepare(tokens_of(65, 64), gpu), [matrix], gpu, torch.float32)


if __name__ == "__main__":
    for each in SANITIZED:
        under_sanitizers(each, Path(sys.argv[1]))
