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
from mrs.kernels.cuda.launcher import Launcher
from mrs.kernels.cuda.products import ACTIVATIONS, multiply
from mrs.kernels.cuda.routing import RouterWeights, RoutingRule, can_route, route
from mrs.kernels.cuda.rows import Heads, rotate_and_write
from mrs.kernels.cuda.self_test import LARGEST_ROW_ERROR, row_error
from mrs.kernels.nonlinearities import gated
from mrs.kernels.norms import rms_norm
from mrs.kernels.paged import PagedKV
from mrs.kernels.workspace.fragments import MOST_TOKENS, parts_of
from mrs.quantization.gguf.fields import split_blocks
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


def matrix_of(
    name: str, blocks: Tensor, gpu: Launcher | None = None
) -> tuple[FragmentMatrix | Tensor, Tensor]:
    """A matrix, and its weights float64 (rows, columns)."""
    values = reference_values(name, blocks).double()
    if name == "BF16":
        return blocks.view(torch.bfloat16), values
    kind = FORMATS[name]
    columns = blocks.shape[1] // kind.block_bytes * kind.block_elements
    matrix = FragmentMatrix(name, len(blocks), columns, CPU, gpu)
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
    found = multiply(x, [matrix], gpu, dtype=torch.float32)
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
            found = multiply(part, [matrix], gpu, dtype=torch.float32)
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
    found = multiply(x, matrices, gpu, bias=bias, added=added)
    wanted = x.double() @ torch.cat([values for _, values in made]).T + bias + added
    assert found.dtype == torch.bfloat16
    assert error(found, wanted) < 3e-3
    (_, grid) = gpu.launched[-1]
    assert grid == (5, 2, 1)
    alone = multiply(x[1:], matrices, gpu, bias=bias, added=added[1:])
    assert torch.equal(alone, found[1:])


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["BF16", "Q6_K", "Q4_0"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("columns", [1184, 768])
def test_a_norm_before_a_product(name: str, dtype: torch.dtype, columns: int, folder: Path) -> None:
    """With the same bits in any company; columns are no whole tiles, or cut into parts."""
    columns = 768 if name == "Q6_K" else columns
    matrix, values = matrix_of(name, random_blocks(name, 144, columns))
    x = tokens_of(10, columns, dtype)
    x[1] *= 300
    x[2] = 0
    norm = torch.rand(columns) + 0.5
    gpu = EmulatedGpu(folder)
    found = multiply(x, [matrix], gpu, dtype=torch.float32, norm=norm, eps=1e-5)
    assert error(found, rms_norm(x.float(), norm, 1e-5).double() @ values.T) < 3e-3
    alone = multiply(x[3:4], [matrix], gpu, dtype=torch.float32, norm=norm, eps=1e-5)
    assert torch.equal(alone, found[3:4])


@pytest.mark.few(2)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("name", "columns"), [("Q8_0", 96), ("Q4_K", 768), ("BF16", 1160)])
def test_a_gate(name: str, columns: int, activation: str, folder: Path) -> None:
    """The two products of an MLP, whose sums are in one part or several."""
    gate, gates = matrix_of(name, random_blocks(name, 144, columns, 1))
    up, ups = matrix_of(name, random_blocks(name, 144, columns, 2))
    x, norm, bias = tokens_of(9, columns), torch.rand(columns) + 0.5, torch.randn(288)
    gpu = EmulatedGpu(folder, order=1)

    def computed(some: Tensor) -> Tensor:
        return multiply(
            some,
            [gate, up],
            gpu,
            dtype=torch.float32,
            norm=norm,
            eps=1e-5,
            bias=bias,
            activation=activation,
        )

    normed = rms_norm(x.float(), norm, 1e-5).double()
    products = normed @ gates.T + bias[:144], normed @ ups.T + bias[144:]
    wanted = gated(activation, *products)
    found = computed(x)
    assert found.shape == (9, 144)
    assert error(found, wanted) < 5e-3
    assert torch.equal(computed(x[-2:]), found[-2:])


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("name", "columns"), [(name, 768) for name in FRAGMENT_FORMATS] + [("Q8_0", 96), ("Q4_0", 2208)]
)
def test_decoded_rows(name: str, columns: int, dtype: torch.dtype, folder: Path) -> None:
    """Chosen ones, and those of products with many tokens."""
    gpu = EmulatedGpu(folder)
    matrix, values = matrix_of(name, random_blocks(name, 48, columns), gpu)
    assert isinstance(matrix, FragmentMatrix)
    ids = torch.tensor([0, 47, 8, 8, 17])
    assert torch.equal(matrix.rows(ids, dtype), values[ids].to(dtype))
    x = tokens_of(MOST_TOKENS + 1, columns, dtype)
    wanted = x.double() @ values.to(dtype).double().T
    assert error(matrix.matmul(x), wanted) < {torch.float32: 1e-6, torch.float16: 1e-3}.get(
        dtype, 5e-3
    )


def test_panels_of_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix that is larger than a panel; few tokens are multiplied without one."""
    monkeypatch.setattr("mrs.kernels.workspace.fragments.PANEL_WEIGHTS", 1)
    gpu = EmulatedGpu(folder)
    matrix, values = matrix_of("Q4_0", random_blocks("Q4_0", 272, 64), gpu)
    x = tokens_of(70, 64, torch.float32)
    assert isinstance(matrix, FragmentMatrix)
    assert error(matrix.matmul(x), x.double() @ values.T) < LARGEST_ERROR
    assert [grid for kernel, grid in gpu.launched] == [(8, 1, 1), (8, 1, 1), (1, 1, 1)]
    assert error(matrix.matmul(x[:5]), x[:5].double() @ values.T) < 1e-3
    assert gpu.launched[-1][0].name == "products"
    with pytest.raises(ValueError, match="32 columns"):
        matrix.matmul(x[:, :32])


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
            found = multiply(x, [matrix], gpu, dtype=torch.float32)
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
    matrix, values = matrix_of(name, random_blocks(name, 144, columns), gpu)
    x = tokens_of(9, columns)
    found = multiply(x, [matrix], gpu, dtype=torch.float32)
    assert error(found, x.double() @ values.T) < LARGEST_ERROR
    norm = torch.ones(columns)
    multiply(x, [matrix, matrix], gpu, norm=norm, eps=1e-5, activation="silu")
    if isinstance(matrix, FragmentMatrix):
        assert torch.equal(matrix.rows(torch.arange(143, -1, -1), x.dtype).flip(0), values.to(x))
        matrix.matmul(tokens_of(MOST_TOKENS + 1, columns))
    print(name)


def test_what_is_computed_of_rows(folder: Path) -> None:
    """Norms, rotated heads on their way to the cache, and a choice of experts."""
    for order in (0, 1):
        assert row_error(CPU, EmulatedGpu(folder, order=order)) <= LARGEST_ROW_ERROR


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32]
)
def test_what_a_cache_gets(dtype: torch.dtype, folder: Path) -> None:
    """Values as torch converts them, of every exponent: the largest in place of what is larger."""
    kv = PagedKV(1, 64, 64, block_tokens=16, dtype=dtype, device=CPU)
    kv.resize(64)
    exponents = torch.arange(1024).view(1024, 1, 1) % 40 - 20.0
    values = torch.randn(1024, 3, 64) * torch.exp2(exponents)
    values[0, 2, :4] = torch.tensor([float("nan"), -448.0, 465.0, 1e30])
    slots, zeros = torch.arange(1023, -1, -1), torch.zeros(1024, 8)
    angles, heads = (zeros + 1, zeros), Heads(1, 1, 64, is_interleaved=True)
    found = rotate_and_write(values.flatten(1), angles, heads, slots, kv, EmulatedGpu(folder))
    assert torch.equal(found, values[:, 0])
    largest = torch.finfo(dtype).max
    wanted = values.clamp(-largest, largest).to(dtype)
    for held, each in ((kv.keys, wanted[:, 1]), (kv.values, wanted[:, 2])):
        written = held.view(1024, 64).flip(0).float()
        assert torch.equal(written.nan_to_num(-1), each.float().nan_to_num(-1))


@pytest.mark.full
@pytest.mark.parametrize("is_sigmoid", [False, True])
@pytest.mark.parametrize("sums_to_one", [False, True])
def test_chosen_experts(is_sigmoid: bool, sums_to_one: bool, folder: Path) -> None:
    """The first of those with equal scores, of up to as many as a warp has lanes, or all."""
    gpu, weight = EmulatedGpu(folder), torch.randn(40, 64)
    weight[7:9] = weight[3]
    x = tokens_of(3, 64, torch.float32)
    rule = RoutingRule(32, 0.5, is_sigmoid=is_sigmoid, sums_to_one=sums_to_one)
    same, weights, indices = route(x, RouterWeights(weight), rule, gpu)
    logits = x @ weight.T
    scores = logits.sigmoid() if is_sigmoid else logits.softmax(-1)
    best = scores.topk(32).values
    best = best / (best.sum(-1, keepdim=True) if sums_to_one else 1)
    assert same is x
    assert error(weights, 0.5 * best.double()) < 1e-5
    for row in indices.tolist():
        assert len(set(row)) == 32
        assert [each for each in row if each in (3, 7, 8)] in ([], [3], [3, 7], [3, 7, 8])
    assert not can_route(RouterWeights(weight), rule._replace(top_k=33))


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
    x = tokens_of(1, 64)
    assert multiply(x[:0], [matrix], gpu).shape == (0, 16)
    with pytest.raises(ValueError, match="4 matrices"):
        multiply(x, [matrix] * 4, gpu)
    with pytest.raises(ValueError, match="of 2 formats"):
        multiply(x, [matrix, dense], gpu)
    with pytest.raises(ValueError, match="128 columns"):
        multiply(tokens_of(1, 128), [matrix], gpu)
    with pytest.raises(ValueError, match="65 tokens"):
        multiply(tokens_of(65, 64), [matrix], gpu)
    with pytest.raises(ValueError, match="a gate"):
        multiply(x, [matrix], gpu, activation="silu")
    with pytest.raises(ValueError, match="whole tiles"):
        FragmentMatrix("Q8_0", 24, 64, CPU)


if __name__ == "__main__":
    for each in SANITIZED:
        under_sanitizers(each, Path(sys.argv[1]))
