"""Products by AVX-VNNI, whose instruction processors with AVX-512 have in another encoding."""

from __future__ import annotations

import subprocess
from ctypes import CDLL, c_void_p
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from library_products import products_of
from packed_blocks import random_blocks, same_bytes
from torch import Tensor

from mrs.kernels.cpu.library import NativeLibrary, native_library, native_paths
from mrs.kernels.cpu.native import compile as native
from mrs.kernels.packed_layout import FLOAT_FORMATS, PACKED_FORMATS
from support.emulated_amx import COMPILER, needs_avx512

CODES = [name for name in PACKED_FORMATS if name not in FLOAT_FORMATS]
COLUMNS = 256
TOKENS = (1, 2, 3, 8, 9, 33)
REAL = [path for path in native_paths() if path == "avx_vnni"]


@pytest.fixture(scope="module", params=[pytest.param("other encoding", marks=needs_avx512), *REAL])
def vnni(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeLibrary:
    library = native_library()
    assert library is not None
    if request.param in REAL:
        address = library.functions.mrs_path(request.param.encode())
        return replace(library, path="avx_vnni", path_address=address)
    sources, compiled = native.LIBRARY.parent, tmp_path_factory.mktemp("vnni") / "vnni.so"
    flags = [*native._PROCESSOR["x86_64"]["isa/avx_vnni.c"], f"-I{sources}", "-std=gnu11", "-Og"]
    flags += ["-shared", "-fPIC", "-ffp-contract=off", "-o", str(compiled)]
    files = [Path(__file__).with_name("evex_vnni.c"), sources / "gemm/prefetch.c"]
    subprocess.run([str(COMPILER), *flags, *files], check=True)
    kernels = CDLL(str(compiled)).vnni_kernels
    kernels.restype, kernels.argtypes = c_void_p, (c_void_p,)
    avx2 = library.functions.mrs_path(b"avx2")
    return replace(library, path="avx_vnni", path_address=kernels(avx2))


def assert_as_avx2(vnni: NativeLibrary, name: str, blocks: Tensor, xs: list[Tensor]) -> None:
    avx2 = replace(vnni, path="avx2", path_address=vnni.functions.mrs_path(b"avx2"))
    found, expected = (
        torch.cat(products_of(each, name, blocks, xs, COLUMNS)) for each in (vnni, avx2)
    )
    if name.startswith("INT8"):  # the bytes' offset is in the minimum, which is rounded
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3 * expected.abs().mean())
    else:
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.values
@pytest.mark.parametrize("name", CODES)
def test_random_blocks(name: str, vnni: NativeLibrary) -> None:
    x = torch.randn(max(TOKENS), COLUMNS, generator=torch.Generator().manual_seed(0))
    assert_as_avx2(vnni, name, random_blocks(name, 35, COLUMNS), [x[:n] for n in TOKENS])


@pytest.mark.values
@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("codes", [0x00, 0x7F, 0x80, 0xFF])
def test_largest_sums(name: str, codes: int, vnni: NativeLibrary) -> None:
    blocks = same_bytes(name, 16, COLUMNS, codes, half=0x03FF)
    assert_as_avx2(vnni, name, blocks, [torch.ones(3, COLUMNS), -torch.ones(9, COLUMNS)])
