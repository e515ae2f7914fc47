"""The measured peak of arithmetic counts the products that its instructions compute."""

from __future__ import annotations

import pytest

from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.peaks import arithmetic_peak

LIBRARY = native_library()
LANES = {
    "portable": 4,
    "avx2": 8,
    "avx_vnni": 8,
    "neon": 4,
    "avx512": 16,
    "avx512_bf16": 16,
}
CHAINS, ROUNDS = 12, 1000
QUADS = {"avx2": 8}  # that a chain multiplies at once


@pytest.mark.skipif(LIBRARY is None, reason="needs the native library")
@pytest.mark.parametrize(("factors", "values"), [(0, 4), (1, 1)])
def test_products_of_all_tasks_are_counted(factors: int, values: int) -> None:
    assert LIBRARY is not None
    lanes = LANES.get(LIBRARY.path)
    if lanes is None:
        pytest.skip("counted in tiles")
    if factors == 0:
        values *= QUADS.get(LIBRARY.path, 1)
    call = LIBRARY.functions.mrs_multiply_registers
    counted = call(LIBRARY.path_address, factors, 3, 2)
    assert counted == 3 * ROUNDS * CHAINS * lanes * values


def test_weights_that_torch_multiplies_have_no_peak() -> None:
    assert arithmetic_peak("IQ4_NL", rounds=1) is None


@pytest.mark.skipif(LIBRARY is None, reason="needs the native library")
def test_integer_weights_have_a_peak() -> None:
    assert (arithmetic_peak("Q4_K", rounds=1) or 0) > 0
