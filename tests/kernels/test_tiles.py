"""Products by AMX's tiles, on any processor with AVX-512; those of codes have its bits."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from library_products import products_of
from packed_blocks import random_blocks, reference_values, same_bytes
from torch import Tensor

from mrs.formats import FORMATS
from mrs.kernels.cpu.library import NativeLibrary, native_library, native_paths
from mrs.kernels.packed_layout import FLOAT_FORMATS, PACKED_FORMATS
from mrs.kernels.workspace.products import NARROW_TOKENS, PAIRED_PATHS, packed_workspace_bytes
from support.emulated_amx import BASE_PATHS, compile_emulation, emulated_library, needs_avx512
from support.suites import suite_of

pytestmark = needs_avx512

CODES = [name for name in PACKED_FORMATS if name not in FLOAT_FORMATS]
COLUMNS = 256
TOKENS = (1, 16, 17, 31, 32, 33, 130, 500)
#: Formats that tiles of bf16 multiply, with columns of which one block is left over.
FLOATS = {
    name: 4096 + (FORMATS[name].block_elements if name[:3] in ("FP8", "NF4") else 13)
    for name in FLOAT_FORMATS
    if name != "F32"
}
#: Emulated products are slow: core has one format, and of F16's several tiles how exact they are;
#: `test_packed.py` has the others.
EACH_FLOAT = [pytest.param(name, marks=suite_of(name, ("BF16",))) for name in FLOATS]
EACH_EXACT = [pytest.param(name, marks=suite_of(name, ("F16", "BF16"))) for name in FLOATS]
ROWS = 35
MANY_TOKENS = (17, 31, 33, 65, 129)


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


@pytest.mark.few(6)
@pytest.mark.values
@pytest.mark.parametrize("name", CODES)
def test_random_blocks(name: str, tiles: NativeLibrary) -> None:
    """Tokens that fill tiles and panels or not, an odd number of groups, the last with 3 rows."""
    x = torch.randn(max(TOKENS), COLUMNS, generator=torch.Generator().manual_seed(0))
    xs = [x[:tokens] for tokens in TOKENS]
    assert_same_products(tiles, name, random_blocks(name, 35, COLUMNS), xs)


@pytest.mark.values
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


@pytest.mark.parametrize(
    ("name", "tokens", "tiles"),
    [("Q4_0", 20, 2), ("BF16", 33, 3), ("BF16", 5, 1), ("F16", 33, 3 * 3)],
)
def test_tiles_are_used_and_released(
    name: str, tokens: int, tiles: int, emulation: ctypes.CDLL
) -> None:
    """In each thread that multiplies."""
    library, before = emulated_library(emulation), emulation.emulated_products()
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        products_of(library, name, random_blocks(name, 96, 64), [torch.ones(tokens, 64)], 64)
    finally:
        torch.set_num_threads(threads)
    assert emulation.emulated_products() - before == 3 * 2 * tiles * 2  # pairs, units, groups
    assert emulation.emulated_threads() == 0


def normal(tokens: int, columns: int) -> Tensor:
    return torch.randn(tokens, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.few("emulated-BF16", "amx-BF16")
@pytest.mark.parametrize("name", EACH_EXACT)
def test_floats(name: str, tiles: NativeLibrary) -> None:
    """Almost as exact as float32, but for activations that BF16 rounds."""
    columns = FLOATS[name]
    blocks, x = random_blocks(name, ROWS, columns), normal(max(MANY_TOKENS), columns)
    values = reference_values(name, blocks).double()
    exact, size = x.double() @ values.T, x.abs().double() @ values.abs().T
    xs = [x[:tokens] for tokens in MANY_TOKENS]
    for result in products_of(tiles, name, blocks, xs, columns):
        tokens = len(result)
        error = (result.double() - exact[:tokens]).norm() / exact[:tokens].norm()
        assert error < (2e-3 if name == "BF16" else 1e-5)
        multiplied = x[:tokens].bfloat16() if name == "BF16" else x[:tokens]
        expected = multiplied.double() @ values.T
        assert ((result.double() - expected).abs() <= 1e-6 * size[:tokens]).all()


@pytest.mark.full
@pytest.mark.parametrize("name", EACH_FLOAT)
def test_floats_are_close_to_those_of_avx512(name: str, tiles: NativeLibrary) -> None:
    path = BASE_PATHS[0]
    if name == "BF16" and path not in PAIRED_PATHS:
        pytest.skip("this path does not round activations")
    columns = FLOATS[name]
    blocks, x = random_blocks(name, ROWS, columns), normal(129, columns)
    without = NativeLibrary(tiles.functions, path, tiles.functions.mrs_path(path.encode()))
    (found,), (expected,) = (
        products_of(each, name, blocks, [x], columns) for each in (tiles, without)
    )
    size = x.abs() @ reference_values(name, blocks).abs().T
    assert ((found - expected).abs() <= 1e-6 * size).all()


@pytest.mark.full
@pytest.mark.parametrize("name", EACH_FLOAT)
def test_rows_of_floats_are_multiplied_as_in_other_batches(name: str, tiles: NativeLibrary) -> None:
    """BF16 with any number of tokens, others with many."""
    columns = FLOATS[name]
    blocks, x = random_blocks(name, ROWS, columns), normal(300, columns)
    least = 1 if name == "BF16" else NARROW_TOKENS + 1
    xs = [x[-tokens:] for tokens in (300, 1, 2, 3, 8, 12, 15, 16, *MANY_TOKENS) if tokens >= least]
    whole, *others = products_of(tiles, name, blocks, xs, columns)
    for other in others:
        assert torch.equal(other, whole[-len(other) :]), len(other)


@pytest.mark.full
@pytest.mark.parametrize("name", EACH_FLOAT)
def test_threads_change_nothing(name: str, tiles: NativeLibrary) -> None:
    columns = FLOATS[name]
    blocks, x = random_blocks(name, 160, columns), normal(40, columns)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results += products_of(tiles, name, blocks, [x], columns)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.full
@pytest.mark.parametrize("name", EACH_FLOAT)
def test_floats_take_their_workspace(name: str, tiles: NativeLibrary) -> None:
    columns, peak = FLOATS[name], tiles.functions.mrs_scratch_peak
    for tokens in (1, 16, *MANY_TOKENS, 400):
        peak()
        products_of(
            tiles, name, random_blocks(name, ROWS, columns), [normal(tokens, columns)], columns
        )
        assert peak() == packed_workspace_bytes("amx", [name], tokens, columns), tokens


@pytest.mark.parametrize("tokens", [3, 20])
def test_order_of_sums(tokens: int, tiles: NativeLibrary) -> None:
    """That of Intel's manual: even columns and odd ones, of 32 at a time."""
    weights, x = normal(ROWS, COLUMNS).bfloat16(), normal(tokens + ROWS, COLUMNS)[ROWS:].bfloat16()
    (found,) = products_of(tiles, "BF16", weights.view(torch.uint8), [x.float()], COLUMNS)
    total = torch.zeros(tokens, ROWS)
    for unit in range(0, COLUMNS, 32):
        chains = []
        for first in (unit, unit + 1):
            chain = torch.zeros(tokens, ROWS)
            for column in range(first, unit + 32, 2):
                product = x[:, column, None].double() * weights[:, column].double()
                chain = (chain.double() + product).float()
            chains.append(chain)
        total += chains[0] + chains[1]
    assert torch.equal(found, total)


@pytest.mark.parametrize("tokens", [3, 20])
def test_subnormal_activations_are_0(tokens: int, tiles: NativeLibrary) -> None:
    weights = torch.full((ROWS, COLUMNS), 1e20).bfloat16().view(torch.uint8)
    (found,) = products_of(tiles, "BF16", weights, [torch.full((tokens, COLUMNS), 1e-39)], COLUMNS)
    assert (found == 0).all()


@pytest.mark.parametrize("row", [0, 20, 34])
def test_subnormal_weights_count(row: int, tiles: NativeLibrary) -> None:
    """With any number of tokens alike, and in rows that are multiplied with others' too."""
    weights, x = normal(ROWS, COLUMNS).bfloat16(), normal(40, COLUMNS).abs() * 1e30
    weights[row] = 1e-39
    few, many = products_of(tiles, "BF16", weights.view(torch.uint8), [x[:3], x], COLUMNS)
    assert torch.equal(few, many[:3])
    expected = x.double() @ weights.double().T
    size = x.double() @ weights.abs().double().T
    assert ((many.double() - expected).abs() <= 4e-3 * size).all()


@pytest.mark.parametrize("name", ["F16", "BF16"])
@pytest.mark.parametrize("bits", [0x7FFF, 0x7F81, -1])
def test_not_a_number_stays_visible(name: str, bits: int, tiles: NativeLibrary) -> None:
    """In weights and activations."""
    weights, x = torch.ones(ROWS, COLUMNS, dtype=torch.int16), torch.ones(20, COLUMNS)
    weights[3, 5] = bits
    x[7, 9] = torch.tensor([bits << 16], dtype=torch.int64).to(torch.int32).view(torch.float32)
    (found,) = products_of(tiles, name, weights.view(torch.uint8), [x], COLUMNS)
    assert found[:, 3].isnan().all()
    assert found[7].isnan().all()
    assert found.isnan().sum() == 20 + ROWS - 1
