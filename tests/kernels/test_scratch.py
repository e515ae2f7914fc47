"""The native library counts the memory that its kernels take for themselves."""

from __future__ import annotations

import pytest
import torch
from packed_blocks import random_blocks

from mrs.engine.profile.peak_memory import peak_bytes
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.cpu.packed import PackedMatrix

CPU = torch.device("cpu")
COLUMNS = 8192  # of three tokens: more than each thread packs for itself


def test_a_product_takes_its_activations_once_more(library: NativeLibrary) -> None:
    """8 bits and scales for 8-bit weights: between one number in 8 bits and one in 16."""
    matrix = PackedMatrix("Q8_0", 64, COLUMNS)
    matrix.fill(random_blocks("Q8_0", 64, COLUMNS))
    x = torch.ones(3, COLUMNS)  # few enough for one panel on every path
    library.functions.mrs_scratch_peak()
    matrix.matmul(x)
    peak = library.functions.mrs_scratch_peak()
    assert x.numel() <= peak <= 2 * x.numel()
    assert library.functions.mrs_scratch_peak() == 0


@pytest.mark.usefixtures("library")
def test_a_measurement_sees_it() -> None:
    matrix = PackedMatrix("Q8_0", 64, COLUMNS)
    matrix.fill(random_blocks("Q8_0", 64, COLUMNS))
    x = torch.ones(3, COLUMNS)  # few enough for one panel on every path
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
