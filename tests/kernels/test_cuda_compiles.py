"""The CUDA kernels compile for GPUs that are not there, to few instructions.

Nothing is run: `test_cuda_emulated.py` does that, as far as a CPU can.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mrs.kernels.cuda import cubins, nvrtc
from mrs.kernels.cuda.cubins import Kernel, cubin_of
from mrs.kernels.cuda.decode import decode_kernel
from mrs.kernels.cuda.fragments import FRAGMENT_FORMATS
from mrs.kernels.cuda.launcher import THREADS
from mrs.kernels.cuda.nvrtc import CompilerError
from mrs.kernels.cuda.products import products_kernel, shared_bytes_of, token_tiles
from mrs.kernels.cuda.routing import route_kernel
from mrs.kernels.cuda.rows import normalize_kernel, rotate_kernel
from support.emulated_gpu import LIMITS
from support.sass import compiled

pytestmark = pytest.mark.needs("NVRTC")

FORMATS_OF_KERNELS = (*FRAGMENT_FORMATS, "BF16")
REGISTERS = 1 << 16
#: Instructions of the main loop for each weight, with 1 to 8 tokens and no norm. At 3.35 TB/s, an
#: H100 has time for 5.0 with Q4_K, 7.3 with Q6_K, 9.4 with Q8_0 and 17.7 with bf16, if all of its
#: schedulers are busy. Those of the conversion of x, a third of them, run in four of eight warps.
MOST_INSTRUCTIONS = {
    "Q4_K": 3.3,
    "Q5_K": 4.2,
    "Q6_K": 4.7,
    "Q8_0": 3.0,
    "Q4_0": 3.1,
    "BF16": 2.1,
}


def kernel_of(
    kinds: tuple[str, ...], tokens: int, capability: int, **options: Any
) -> tuple[Kernel, int, int]:
    """A kernel for a number of tokens on a GPU, its tiles of tokens, and its shared memory."""
    limits = LIMITS[capability]
    tiles = token_tiles(kinds, tokens, limits)
    shared = shared_bytes_of(kinds, tiles, limits)
    assert shared is not None
    types = torch.bfloat16, torch.bfloat16
    return products_kernel(kinds, tiles, *types, shared, is_whole=True, **options), tiles, shared


@pytest.mark.few(3)
@pytest.mark.parametrize("capability", LIMITS)
@pytest.mark.parametrize("name", FORMATS_OF_KERNELS)
def test_few_tokens(name: str, capability: int) -> None:
    """A loop has as few instructions as the memory of a fast GPU leaves time for."""
    kernel, tiles, _ = kernel_of((name,), 8, capability)
    found = compiled(kernel, LIMITS[capability].architecture)
    assert tiles == 1
    assert found.spilled_bytes == found.static_shared_bytes == 0
    assert found.registers * THREADS * 2 <= REGISTERS  # two blocks on a multiprocessor
    body = found.main_loop()
    weights = 16 * (128 if name == "BF16" else 256) / 32
    assert len(body) / weights <= MOST_INSTRUCTIONS[name]
    products = sum("MMA" in each for each in body)
    assert products == {"Q4_K": 18, "Q5_K": 18, "Q6_K": 34, "BF16": 8}.get(name, 16)
    # Copies of 16 bytes, of which the kernel waits for those of one step at a time.
    assert sum("LDGSTS" in each and ".128" in each for each in body) >= weights * 16 / 512
    assert not any(each.split()[0].startswith(("LDL", "STL", "LDG.")) for each in body)


@pytest.mark.full
@pytest.mark.parametrize("tokens", [16, 64])
@pytest.mark.parametrize("capability", [89, 90])
@pytest.mark.parametrize("name", FORMATS_OF_KERNELS)
def test_more_tokens(name: str, capability: int, tokens: int) -> None:
    """Nothing spills, and a block fits."""
    kernel, tiles, shared = kernel_of((name,), tokens, capability)
    found = compiled(kernel, LIMITS[capability].architecture)
    assert found.spilled_bytes == 0
    assert found.registers * THREADS <= REGISTERS
    assert tiles >= 2
    assert shared <= LIMITS[capability].block_bytes
    per_pass = sum("MMA" in each for each in found.main_loop()) / tiles
    products = {"Q4_K": 18, "Q5_K": 18, "Q6_K": 34, "BF16": 8}.get(name, 16)
    assert per_pass in (products, products / 2)  # the compiler may leave a pass in two rounds


@pytest.mark.full
@pytest.mark.parametrize("capability", LIMITS)
def test_two_formats_in_one_launch(capability: int) -> None:
    kernel, _, _ = kernel_of(("Q4_K", "Q6_K"), 8, capability)
    found = compiled(kernel, LIMITS[capability].architecture)
    assert found.spilled_bytes == 0
    assert found.registers * THREADS * 2 <= REGISTERS


@pytest.mark.few(1)
@pytest.mark.parametrize("capability", [80, 90, 120])
@pytest.mark.parametrize("tokens", [8, 64])
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "BF16"])
def test_a_gate_behind_a_norm(name: str, tokens: int, capability: int) -> None:
    kernel, *_ = kernel_of((name,), tokens, capability, has_norm=True, activation="silu")
    found = compiled(kernel, LIMITS[capability].architecture)
    assert found.spilled_bytes == 0
    assert found.registers * THREADS * (2 if tokens == 8 else 1) <= REGISTERS


@pytest.mark.few(1)
@pytest.mark.parametrize("capability", [80, 90, 120])
@pytest.mark.parametrize("name", FRAGMENT_FORMATS)
def test_decoded_rows(name: str, capability: int) -> None:
    found = compiled(decode_kernel(name, torch.bfloat16), LIMITS[capability].architecture)
    assert found.spilled_bytes == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("capability", LIMITS)
def test_what_is_computed_of_rows(capability: int) -> None:
    x = torch.bfloat16
    for kernel in (
        normalize_kernel(x),
        rotate_kernel(x, x, has_norms=True, is_interleaved=False),
        rotate_kernel(x, torch.float8_e4m3fn, has_norms=False, is_interleaved=True),
        route_kernel(x, has_norm=True, is_sigmoid=False, sums_to_one=True),
        route_kernel(x, has_norm=False, is_sigmoid=True, sums_to_one=False),
    ):
        found = compiled(kernel, LIMITS[capability].architecture)
        assert found.spilled_bytes == 0
        assert found.registers * THREADS * 2 <= REGISTERS


@pytest.mark.full
@pytest.mark.parametrize("name", FORMATS_OF_KERNELS)
def test_columns_that_are_no_whole_tiles(name: str) -> None:
    limits = LIMITS[90]
    shared = shared_bytes_of((name,), 1, limits, 4)
    assert shared is not None
    kernel = products_kernel(
        (name,), 1, torch.float32, torch.float32, shared, is_whole=False, has_norm=True
    )
    assert compiled(kernel, limits.architecture).spilled_bytes == 0


def test_a_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is damaged is compiled again; another version of the compiler has its own files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel = decode_kernel("Q8_0", torch.bfloat16)
    compiler = nvrtc.nvrtc()
    assert compiler is not None
    cubin = cubin_of(kernel, "sm_80", compiler)
    assert cubin.startswith(b"\x7fELF")
    (file,) = (tmp_path / "mrs" / cubins.FOLDER).iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(cubins, "compile_kernel", None)
        assert cubin_of(kernel, "sm_80", compiler) == cubin
    stored = bytearray(file.read_bytes())
    stored[-1] ^= 1
    file.write_bytes(stored)
    assert cubin_of(kernel, "sm_80", compiler) == cubin
    monkeypatch.setattr(compiler, "version", (99, 0))
    assert cubin_of(kernel, "sm_80", compiler) == cubin
    assert len(list(file.parent.iterdir())) == 2
    monkeypatch.setattr(cubins, "MAX_FILES", 1)
    cubin_of(kernel, "sm_86", compiler)
    assert len(list(file.parent.iterdir())) == 1


def test_what_the_compiler_refuses_is_said() -> None:
    compiler = nvrtc.nvrtc()
    assert compiler is not None
    with pytest.raises(CompilerError, match=r"k\.cu for sm_80: k\.cu\(1\): error.*nothing"):
        compiler.compile("k.cu", b"nothing here;", {}, "sm_80")
    with pytest.raises(CompilerError, match="sm_1"):
        compiler.compile("k.cu", b"", {}, "sm_1")


@pytest.mark.parametrize(
    ("cuda", "first"), [("12.8", "libnvrtc.so.12"), ("13.0", "libnvrtc.so.13"), (None, "so.14")]
)
def test_the_compiler_of_torch_comes_first(
    cuda: str | None, first: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its driver may not load what a newer one compiles."""
    for name in (
        "cuda_nvrtc/lib/libnvrtc.so.12",
        "cu13/lib/libnvrtc.so.13",
        "cu14/lib/libnvrtc.so.14",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.touch()
        path.with_name("libnvrtc-builtins.so.13.0").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(nvrtc, "find_spec", lambda name: spec)
    monkeypatch.setattr(nvrtc, "_TOOLKITS", ())
    monkeypatch.setattr(torch.version, "cuda", cuda)
    found = [path.name for path in nvrtc.library_paths()]
    assert len(found) == 3
    assert found[0].endswith(first)


def test_a_machine_without_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is none in packages or a toolkit, or what is there is no library."""
    nvrtc.nvrtc.cache_clear()
    monkeypatch.setattr(nvrtc, "find_spec", lambda name: None)
    monkeypatch.setattr(nvrtc, "_TOOLKITS", (str(tmp_path),))
    assert nvrtc.library_paths() == []
    (tmp_path / "libnvrtc.so.13").write_bytes(b"no library")
    assert len(nvrtc.library_paths()) == 1
    assert nvrtc.nvrtc() is None
    nvrtc.nvrtc.cache_clear()
