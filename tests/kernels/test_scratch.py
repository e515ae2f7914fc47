"""The native library counts the memory that its kernels take for themselves."""

from __future__ import annotations

import pytest
import torch
from packed_blocks import random_blocks

from mrs.engine.profile.peak_memory import peak_bytes
from mrs.formats import FORMATS
from mrs.kernels.library import NativeLibrary
from mrs.kernels.packed import PackedMatrix
from mrs.plan.forward_pass import Pass, decodes_packed, panel_bytes

CPU = torch.device("cpu")


def test_a_product_takes_its_activations_once_more(library: NativeLibrary) -> None:
    """8 bits and scales for 8-bit weights: between one number in 8 bits and one in 16."""
    matrix = PackedMatrix("Q8_0", 64, 1024)
    matrix.fill(random_blocks("Q8_0", 64, 1024))
    x = torch.ones(3, 1024)  # few enough for every path
    library.functions.mrs_scratch_peak()
    matrix.matmul(x)
    peak = library.functions.mrs_scratch_peak()
    assert x.numel() <= peak <= 2 * x.numel()
    assert library.functions.mrs_scratch_peak() == 0


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "F16", "BF16"])
@pytest.mark.parametrize("tokens", [1, 3, 8, 9, 12, 13, 16, 21, 40])
def test_panels_are_as_large_as_the_plan_says(
    name: str, tokens: int, library: NativeLibrary
) -> None:
    run = Pass(tokens, tokens, tokens, FORMATS["F32"], FORMATS["BF16"], 1, library.path)
    if decodes_packed(run, tokens):
        pytest.skip("this path decodes the weights of so many tokens")
    matrix = PackedMatrix(name, 64, 1024)
    matrix.fill(random_blocks(name, 64, 1024))
    torch.set_num_threads(1)
    library.functions.mrs_scratch_peak()
    matrix.matmul(torch.ones(tokens, 1024))
    planned = panel_bytes(run, [FORMATS[name]], tokens, 1024, 64)
    assert library.functions.mrs_scratch_peak() == planned


@pytest.mark.usefixtures("library")
def test_a_measurement_sees_it() -> None:
    matrix = PackedMatrix("Q8_0", 64, 1024)
    matrix.fill(random_blocks("Q8_0", 64, 1024))
    x = torch.ones(3, 1024)  # few enough for every path
    result = 3 * 64 * 4
    assert result + x.numel() <= peak_bytes(lambda: matrix.matmul(x), CPU) <= result + 2 * x.numel()


def test_what_was_there_before_does_not_count() -> None:
    """Neither while it is held nor when it is given back."""
    before = [torch.ones(1 << 16), torch.ones(1 << 18)]

    def work() -> None:
        made = torch.ones(1 << 17)
        before.clear()
        made[: 1 << 16] += torch.ones(1 << 16)

    assert peak_bytes(work, CPU) == 4 * ((1 << 17) + (1 << 16))
