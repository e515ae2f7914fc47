"""Products by AMX's tiles have the bits of those by AVX-512, on any processor with AVX-512."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from library_products import products_of
from packed_blocks import random_blocks, same_bytes
from torch import Tensor

from mrs.kernels.cpu.library import NativeLibrary, native_library, native_paths
from mrs.sizes.packed_layout import FLOAT_FORMATS, PACKED_FORMATS
from support.emulated_amx import BASE_PATHS, compile_emulation, emulated_library, needs_avx512

pytestmark = needs_avx512

CODES = [name for name in PACKED_FORMATS if name not in FLOAT_FORMATS]
COLUMNS = 256
TOKENS = (1, 16, 17, 31, 32, 33, 130, 500)


@pytest.fixture(scope="module")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_emulation(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(params=["emulated", *(path for path in native_paths() if path == "amx")])
def tiles(request: pytest.FixtureRequest, emulation: ctypes.CDLL) -> NativeLibrary:
    """The library with the path `amx`; on processors that have it, also the real one."""
    if request.param == "emulated":
        return emulated_library(emulation)
    library = native_library()
    assert library is not None
    return library


def assert_same_products(
    tiles: NativeLibrary, name: str, blocks: Tensor, xs: list[Tensor], columns: int = COLUMNS
) -> None:
    for path in BASE_PATHS:
        address = tiles.functions.mrs_path(path.encode())
        without = NativeLibrary(tiles.functions, path, address)
        found, expected = (
            products_of(each, name, blocks, xs, columns) for each in (tiles, without)
        )
        for x, a, b in zip(xs, found, expected, strict=True):
            assert np.array_equal(a.view(torch.int32), b.view(torch.int32)), (path, len(x))


@pytest.mark.parametrize("name", CODES)
def test_random_blocks(name: str, tiles: NativeLibrary) -> None:
    """Tokens that fill tiles and panels or not, an odd number of groups, the last with 3 rows."""
    x = torch.randn(max(TOKENS), COLUMNS, generator=torch.Generator().manual_seed(0))
    xs = [x[:tokens] for tokens in TOKENS]
    assert_same_products(tiles, name, random_blocks(name, 35, COLUMNS), xs)


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("half", [0x0001, 0x7BFF])
def test_extreme_blocks(name: str, half: int, tiles: NativeLibrary) -> None:
    """The largest sums of both signs, the smallest and largest scales; NaN and infinity."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (20, COLUMNS), generator=generator) * 2.0 - 1
    odd = torch.rand(20, COLUMNS, generator=generator)
    odd[3, 5], odd[4, 6], odd[5, 7] = float("nan"), float("inf"), 1e-45
    xs = [torch.ones(20, COLUMNS), -torch.ones(20, COLUMNS), signs * 1e25, odd]
    for codes in (0x00, 0x7F, 0x80, 0xFF):
        assert_same_products(tiles, name, same_bytes(name, 16, COLUMNS, codes, half), xs)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "INT4_128"])
def test_blocks_of_columns(name: str, tiles: NativeLibrary) -> None:
    """More columns than stay in a cache at once."""
    columns = 2048 + 512
    x = torch.randn(40, columns, generator=torch.Generator().manual_seed(0))
    assert_same_products(tiles, name, random_blocks(name, 48, columns), [x], columns)


def test_tiles_are_used_and_released(emulation: ctypes.CDLL) -> None:
    """In each thread that multiplies."""
    library, before = emulated_library(emulation), emulation.emulated_products()
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        products_of(library, "Q4_0", random_blocks("Q4_0", 96, 64), [torch.ones(20, 64)], 64)
    finally:
        torch.set_num_threads(threads)
    assert emulation.emulated_products() - before == 3 * 2 * 2 * 2  # pairs, units, tiles, groups
    assert emulation.emulated_threads() == 0
