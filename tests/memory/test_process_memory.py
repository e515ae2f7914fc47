"""The plan's bounds hold for the process as the operating system sees it.

`python tests/memory/table.py` prints the table of all configurations; the slow ones are also run
by `pytest -m slow tests/memory`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from configurations import LARGE, MIB, QUICK, SLOW, Configuration, model_path, published
from measuring import KERNEL_BYTES, Measured, exit_code_within, measured, planned

from support.suites import first

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the peak is read from /proc"
)
ALL = [
    *first(1, QUICK),
    *(pytest.param(each, marks=pytest.mark.slow) for each in (*SLOW, *published())),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


#: The bound may be this much above the peak. Versions of torch's CUDA build differ by 50 MiB.
LOOSEST = 1.20 if torch.version.cuda else 1.10


def check(found: Measured) -> None:
    assert found.low <= found.peak <= found.high
    assert found.loaded_peak <= found.loading
    if found.peak >= 500 * MIB:
        assert found.high <= LOOSEST * found.peak


@pytest.mark.full
@pytest.mark.parametrize("configuration", ALL, ids=lambda configuration: configuration.name)
def test_bounds_hold(configuration: Configuration, folder: Path) -> None:
    check(measured(configuration, folder))


@pytest.mark.parametrize(
    "configuration", [*QUICK[1:3], *QUICK[4:]], ids=lambda configuration: configuration.name
)
@pytest.mark.full
def test_a_group_just_above_the_bound_is_enough(configuration: Configuration, folder: Path) -> None:
    """The kernel kills what exceeds the group's limit. The kernel's own memory counts, too."""
    bounds = planned(configuration, folder)
    assert exit_code_within(bounds.high + KERNEL_BYTES, configuration, folder) in (0, None)


@pytest.mark.slow
def test_a_model_three_times_as_large_as_the_group(folder: Path) -> None:
    weights = sum(file.stat().st_size for file in model_path(LARGE, folder).glob("*.safetensors"))
    assert exit_code_within(weights // 3, LARGE, folder) in (0, None)


def test_a_group_below_the_bound_is_refused_before_loading(folder: Path) -> None:
    bounds = planned(QUICK[1], folder)
    assert exit_code_within(bounds.low - MIB, QUICK[1], folder) in (4, None)
