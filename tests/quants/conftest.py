"""Every way of encoding that this processor has: torch, and each path of the native library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mrs.devices.cpu_path import PATH_VARIABLE
from mrs.kernels.cpu.library import native_library, native_paths
from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder


@pytest.fixture(params=["torch", *native_paths()])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(PATH_VARIABLE, request.param)
    native_library.cache_clear()
    yield request.param
    native_library.cache_clear()
