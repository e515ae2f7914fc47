"""Every way of encoding that this processor has: torch, and each path of the native library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mrs.devices.cpu_path import PATH_VARIABLE
from mrs.kernels.cpu.library import native_library, native_paths


@pytest.fixture(params=["torch", *native_paths()])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(PATH_VARIABLE, request.param)
    native_library.cache_clear()
    yield request.param
    native_library.cache_clear()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from more; tests of threads ask for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
