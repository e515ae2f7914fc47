"""Native threads beside Python's own and in forked processes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from packed_blocks import random_blocks

from mrs.kernels.cpu.packed import PackedMatrix

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
def matrix() -> PackedMatrix:
    packed = PackedMatrix("Q8_0", 2048, 256)
    packed.fill(random_blocks("Q8_0", 2048, 256))
    torch.set_num_threads(3)
    return packed


@pytest.mark.few(2)
def test_several_callers_at_once(matrix: PackedMatrix) -> None:
    x = torch.randn(24, 256, generator=torch.Generator().manual_seed(0))
    expected = matrix.matmul(x)

    def multiply(_: int) -> bool:
        torch.set_num_threads(3)
        return torch.equal(matrix.matmul(x), expected)

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(multiply, range(40)))


@pytest.mark.few(2)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_multiplies(matrix: PackedMatrix) -> None:
    # Few enough tokens for torch to stay in one thread: its own pool survives no fork.
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    expected = matrix.matmul(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if all(torch.equal(matrix.matmul(x), expected) for _ in range(20)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
