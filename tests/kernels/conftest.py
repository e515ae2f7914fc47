"""The native library, once for each path that this processor can run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mrs.devices.cpu_path import PATH_VARIABLE
from mrs.kernels.cpu.library import NativeLibrary, native_library, native_paths


@pytest.fixture(params=native_paths())
def library(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NativeLibrary | None]:
    yield from _opened(request.param, monkeypatch)


@pytest.fixture(params=[*native_paths(), "torch"])
def any_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every native path and the one without the library."""
    for _ in _opened(request.param, monkeypatch):
        yield request.param


def _opened(path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeLibrary | None]:
    monkeypatch.setenv(PATH_VARIABLE, path)
    native_library.cache_clear()
    opened = native_library()
    assert ("torch" if opened is None else opened.path) == path
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny matrices gain nothing from more
    yield opened
    torch.set_num_threads(threads)
    native_library.cache_clear()
